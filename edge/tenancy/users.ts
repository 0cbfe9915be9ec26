import { and, eq, gt, inArray, lt, or, type SQL, sql } from 'drizzle-orm';
import { union } from 'drizzle-orm/sqlite-core';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import type { Identity, Principal } from '../authentication/principal.ts';
import { rejected } from '../authentication/rejection.ts';
import { BoundedMap } from '../bounded-map.ts';
import { providerPeople } from '../database/company-schema.ts';
import { type Database, openDatabase, type Statement, writeThenRead } from '../database/database.ts';
import { oauthGrants } from '../database/oauth-schema.ts';
import { accounts, projectMembers } from '../database/people-schema.ts';
import {
  auditEvents,
  jobs,
  networkRules,
  organizationMembers,
  organizations,
  projectBranches,
  projects,
  snapshots,
  type UserRow,
  users,
} from '../database/schema.ts';
import { sessions } from '../database/session-schema.ts';

export type TenantIdentity = Identity & { tenantId: string };

const isUserOf = ({ issuer, gid }: Identity): SQL | undefined =>
  and(eq(users.issuer, issuer), eq(users.gid, gid));

const userOf = (db: Database, token: Identity) => db.select().from(users).where(isUserOf(token));

/** The id of the user if the record is as this token wrote it, otherwise no row. */
const settledUserId = (db: Database, token: TenantIdentity) =>
  db
    .select({ id: users.id })
    .from(users)
    .where(and(isUserOf(token), eq(users.tenantId, token.tenantId), eq(users.tenantSeenAt, token.issuedAt)));

/**
 * The three upserts of specification 5.9: user, organization, membership. The first has no effect if the
 * user's tenant is no longer `tenantAsRead` or an equally new token was seen; then the others have none
 * either.
 */
function upsertUser(db: Database, token: TenantIdentity, tenantAsRead: string, now: Date): Statement[] {
  const claimed = {
    email: token.email,
    role: token.role,
    tenantId: token.tenantId,
    tenantSeenAt: token.issuedAt,
  };
  const { issuer, gid, tenantId, role } = token;
  const settled = settledUserId(db, token);
  return [
    db
      .insert(users)
      .values({ id: crypto.randomUUID(), issuer, gid, ...claimed, createdAt: now, updatedAt: now })
      .onConflictDoUpdate({
        target: [users.issuer, users.gid],
        set: { ...claimed, updatedAt: now },
        setWhere: sql`${eq(users.tenantId, tenantAsRead)} and ${lt(users.tenantSeenAt, token.issuedAt)}`,
      }),
    db
      .insert(organizations)
      .select(sql`select ${crypto.randomUUID()}, ${tenantId}, null, ${now.getTime()} where exists ${settled}`)
      .onConflictDoNothing(),
    db
      .insert(organizationMembers)
      .select(
        sql`select id, ${settled}, ${role}, ${now.getTime()} from ${organizations}
          where idp_tenant_id = ${tenantId} and exists ${settled}`,
      )
      .onConflictDoUpdate({
        target: [organizationMembers.organizationId, organizationMembers.userId],
        set: { role },
      }),
  ];
}

/**
 * Moves the user's projects, everything that belongs to them, and the user's audit events from the former
 * tenant to the tenant of this token (specification 5.9). The user's audit events in projects of others are
 * not moved. What is shared with the user, whom the user's projects are shared with, and the clients that the
 * user signed in end. Runs in the
 * batch that changes the user's tenant, after that change, and has no effect if that had none.
 */
function followTenant(db: Database, token: TenantIdentity, formerTenantId: string): Statement[] {
  const { tenantId } = token;
  const user = settledUserId(db, token);
  const projectsOfUser = () =>
    db.select({ id: projects.id }).from(projects).where(inArray(projects.createdBy, user));
  // Jobs and audit events outlive their project; its `project.created` event identifies the former creator.
  const projectsEverOfUser = union(
    projectsOfUser(),
    db
      .select({ id: sql<string>`${auditEvents.projectId}` })
      .from(auditEvents)
      .where(and(eq(auditEvents.name, 'project.created'), inArray(auditEvents.actorId, user))),
  );
  const formerOrganization = db
    .select({ id: organizations.id })
    .from(organizations)
    .where(eq(organizations.idpTenantId, formerTenantId));
  return [
    db
      .delete(organizationMembers)
      .where(
        and(
          inArray(organizationMembers.organizationId, formerOrganization),
          inArray(organizationMembers.userId, user),
        ),
      ),
    db
      .delete(projectMembers)
      .where(or(inArray(projectMembers.userId, user), inArray(projectMembers.projectId, projectsOfUser()))),
    db.delete(oauthGrants).where(inArray(oauthGrants.createdBy, user)),
    db.update(projects).set({ tenantId }).where(inArray(projects.createdBy, user)),
    db.update(projectBranches).set({ tenantId }).where(inArray(projectBranches.projectId, projectsOfUser())),
    db.update(networkRules).set({ tenantId }).where(inArray(networkRules.projectId, projectsOfUser())),
    db.update(snapshots).set({ tenantId }).where(inArray(snapshots.projectId, projectsOfUser())),
    db
      .update(jobs)
      .set({ tenantId, input: sql`json_set(${jobs.input}, '$.actor.tenantId', ${tenantId})` })
      .where(inArray(jobs.projectId, projectsEverOfUser)),
    db
      .update(auditEvents)
      .set({ tenantId })
      .where(
        or(
          inArray(auditEvents.projectId, projectsEverOfUser),
          // The unary plus stops SQLite from using the project index, which would scan all events without a
          // project.
          and(inArray(auditEvents.actorId, user), sql`+${auditEvents.projectId} is null`),
        ),
      ),
  ];
}

/**
 * The current role of the account or person that an access token of the gateway belongs to; null for a token
 * without a session.
 * @returns or UNAUTHENTICATED when the session was ended
 */
export async function currentAccountRole(
  db: Database,
  { sessionId, gid, providerId, tenantId }: Identity,
  now: Date,
): Promise<Result<string | null, Failure>> {
  if (sessionId === undefined) return ok(null);
  if (providerId !== undefined) {
    const [person] = await db
      .select({ role: providerPeople.role })
      .from(sessions)
      .innerJoin(providerPeople, eq(providerPeople.id, sessions.personId))
      .where(
        and(
          eq(sessions.id, sessionId),
          eq(sessions.personId, gid),
          eq(sessions.providerId, providerId),
          gt(sessions.expiresAt, now),
          eq(providerPeople.providerId, providerId),
          eq(providerPeople.tenantId, tenantId ?? ''),
          eq(providerPeople.active, true),
        ),
      );
    return person ? ok(person.role) : rejected('session_ended');
  }
  const [account] = await db
    .select({ role: accounts.role })
    .from(sessions)
    .innerJoin(accounts, eq(accounts.id, sessions.accountId))
    .where(
      and(
        eq(sessions.id, sessionId),
        eq(sessions.accountId, gid),
        gt(sessions.expiresAt, now),
        eq(accounts.tenantId, tenantId ?? ''),
      ),
    );
  return account ? ok(account.role) : rejected('session_ended');
}

/**
 * How long an isolate caches a user. A token of a former tenant or of an ended session is rejected within
 * this time, and a changed role of an account applies within it.
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
 * The bearer as a user of its tenant's organization, created or updated when this token is the newest seen of
 * the user (specification 5.9). A user whose record matches the token costs no write, and one read per 30 s.
 * @returns or UNAUTHENTICATED for a token of a tenant that the user has left, or of an ended session
 */
export async function materialize(
  binding: D1Database,
  identity: Identity & { tenantId: string },
  now: Date,
): Promise<Result<Principal, Failure>> {
  const cache = cacheOf(binding);
  const key = JSON.stringify([identity.issuer, identity.gid, identity.sessionId]);
  const cached = cache.get(key);
  if (cached && now.getTime() < cached.until && isCurrent(cached.user, identity)) {
    return ok({ ...identity, role: cached.accountRole ?? identity.role, userId: cached.user.id });
  }
  const db = openDatabase(binding);
  const account = await currentAccountRole(db, identity, now);
  if (!account.ok) return account;
  const accountRole = account.value;
  const current = { ...identity, role: accountRole ?? identity.role };
  const user = await bringUpToDate(db, current, now);
  if (!user.ok) return user;
  cache.set(key, { user: user.value, accountRole, until: now.getTime() + CACHED_MS });
  return ok({ ...current, userId: user.value.id });
}

/** Whether the record has the tenant of the token, from this token or a newer one. */
const isCurrent = (user: UserRow, token: TenantIdentity) =>
  user.tenantId === token.tenantId && token.issuedAt <= user.tenantSeenAt;

/** Bounds the attempts of one request: another token may move the user in between each time. */
const TRIES = 5;

/**
 * Reads and updates the record until it is current. Each statement of the batch applies only if the record
 * has not changed since it was read, so of two racing requests one writes nothing and retries.
 */
async function bringUpToDate(
  db: Database,
  token: TenantIdentity,
  now: Date,
): Promise<Result<UserRow, Failure>> {
  let [user] = await userOf(db, token);
  for (let left = TRIES; left > 0; left--) {
    if (user && isCurrent(user, token)) return ok(user);
    if (user && token.issuedAt <= user.tenantSeenAt) break;
    const tenantAsRead = user?.tenantId ?? token.tenantId;
    const statements = [
      ...upsertUser(db, token, tenantAsRead, now),
      ...(tenantAsRead === token.tenantId ? [] : followTenant(db, token, tenantAsRead)),
    ];
    [user] = await writeThenRead(db, statements, userOf(db, token));
  }
  // A user who was moved by other tokens all the time has left the tenant of this one as well.
  return user && isCurrent(user, token) ? ok(user) : rejected('token_of_former_tenant');
}
