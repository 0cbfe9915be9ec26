import type { Identity, Principal } from '../authentication/principal.ts';
import { rejected } from '../authentication/rejection.ts';
import { BoundedMap } from '../bounded-map.ts';
import { type Database, inOneBatch, openDatabase } from '../database/database.ts';
import { followTenant } from './follow-tenant.ts';
import { type TenantIdentity, type UserRow, upsertUser, userOf } from './upsert-user.ts';

/** How long an isolate trusts what it read of a user; a token of a former tenant dies within this time. */
const REMEMBERED_MS = 30_000;
const REMEMBERED_USERS = 10_000;

interface RememberedUser {
  user: UserRow;
  until: number;
}

const memories = new WeakMap<D1Database, BoundedMap<string, RememberedUser>>();

function memoryOf(binding: D1Database): BoundedMap<string, RememberedUser> {
  const memory = memories.get(binding) ?? new BoundedMap(REMEMBERED_USERS);
  memories.set(binding, memory);
  return memory;
}

/**
 * The bearer as a user of its tenant's organization, made or brought up to date when this token is the newest
 * seen of the user (spec 5.9). A user who is known as the token says costs no write, and one read in 30 s.
 * @throws ApiError UNAUTHENTICATED for a token of a tenant that the user has left
 */
export async function materialize(
  binding: D1Database,
  identity: Identity & { tenantId: string },
  now: Date,
): Promise<Principal> {
  const memory = memoryOf(binding);
  const key = JSON.stringify([identity.issuer, identity.gid]);
  const remembered = memory.get(key);
  if (remembered && now.getTime() < remembered.until && agrees(remembered.user, identity)) {
    return { ...identity, userId: remembered.user.id };
  }
  const user = await settle(openDatabase(binding), identity, now);
  memory.set(key, { user, until: now.getTime() + REMEMBERED_MS });
  return { ...identity, userId: user.id };
}

/** Whether the record already says what the token says, or something newer. */
const agrees = (user: UserRow, token: TenantIdentity) =>
  user.tenantId === token.tenantId && token.issuedAt <= user.tenantSeenAt;

/**
 * Reads, judges and writes until the record agrees with the token. Every statement of the batch holds only
 * as long as the record is the one that was judged, so of two requests that race one writes nothing and
 * judges again; as the newest token seen only gets newer, this ends.
 */
async function settle(db: Database, token: TenantIdentity, now: Date): Promise<UserRow> {
  let [user] = await userOf(db, token);
  while (!user || !agrees(user, token)) {
    if (user && token.issuedAt <= user.tenantSeenAt) throw rejected('token_of_former_tenant');
    const tenantAsRead = user?.tenantId ?? token.tenantId;
    const answers = await inOneBatch(db, [
      ...upsertUser(db, token, tenantAsRead, now),
      ...(tenantAsRead === token.tenantId ? [] : followTenant(db, token, tenantAsRead)),
      userOf(db, token),
    ]);
    [user] = answers.at(-1) as UserRow[];
  }
  return user;
}
