import type { Identity, Principal } from '../authentication/principal.ts';
import { rejected } from '../authentication/rejection.ts';
import { BoundedMap } from '../bounded-map.ts';
import { type Database, inOneBatch, openDatabase } from '../database/database.ts';
import { currentAccountRole } from './account-session.ts';
import { followTenant } from './follow-tenant.ts';
import { type TenantIdentity, type UserRow, upsertUser, userOf } from './upsert-user.ts';

/**
 * How long an isolate caches a user. A token of a former tenant or of an ended session is rejected within this time, and
 * a changed role of an account applies within it.
 */
const CACHED_MS = 30_000;
const CACHED_USERS = 10_000;

interface CachedUser {
  user: UserRow;
  /** The current role of a gateway account; null for a user of the provider, whose role is in each token. */
  accountRole: string | null;
  until: number;
}

const caches = new WeakMap<D1Database, BoundedMap<string, CachedUser>>();

function cacheOf(binding: D1Database): BoundedMap<string, CachedUser> {
  const cache = caches.get(binding) ?? new BoundedMap(CACHED_USERS);
  caches.set(binding, cache);
  return cache;
}

/**
 * The bearer as a user of its tenant's organization, created or updated when this token is the newest seen of the
 * user (specification 5.9). A user whose record matches the token costs no write, and one read per 30 s.
 * @throws ApiError UNAUTHENTICATED for a token of a tenant that the user has left, or of an ended session
 */
export async function materialize(
  binding: D1Database,
  identity: Identity & { tenantId: string },
  now: Date,
): Promise<Principal> {
  const cache = cacheOf(binding);
  const key = JSON.stringify([identity.issuer, identity.gid, identity.sessionId]);
  const cached = cache.get(key);
  if (cached && now.getTime() < cached.until && isCurrent(cached.user, identity)) {
    return { ...identity, role: cached.accountRole ?? identity.role, userId: cached.user.id };
  }
  const db = openDatabase(binding);
  const accountRole = await currentAccountRole(db, identity, now);
  const current = { ...identity, role: accountRole ?? identity.role };
  const user = await bringUpToDate(db, current, now);
  cache.set(key, { user, accountRole, until: now.getTime() + CACHED_MS });
  return { ...current, userId: user.id };
}

/** Whether the record has the tenant of the token, from this token or a newer one. */
const isCurrent = (user: UserRow, token: TenantIdentity) =>
  user.tenantId === token.tenantId && token.issuedAt <= user.tenantSeenAt;

/**
 * Reads and updates the record until it is current. Each statement of the batch applies only if the record has not
 * changed since it was read, so of two racing requests one writes nothing and retries. The loop ends because
 * `tenantSeenAt` only increases.
 */
async function bringUpToDate(db: Database, token: TenantIdentity, now: Date): Promise<UserRow> {
  let [user] = await userOf(db, token);
  while (!user || !isCurrent(user, token)) {
    if (user && token.issuedAt <= user.tenantSeenAt) throw rejected('token_of_former_tenant');
    const tenantAsRead = user?.tenantId ?? token.tenantId;
    const results = await inOneBatch(db, [
      ...upsertUser(db, token, tenantAsRead, now),
      ...(tenantAsRead === token.tenantId ? [] : followTenant(db, token, tenantAsRead)),
      userOf(db, token),
    ]);
    [user] = results.at(-1) as UserRow[];
  }
  return user;
}
