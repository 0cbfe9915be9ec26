import { and, eq, lte, type SQL, sql } from 'drizzle-orm';
import { BRANCH_TRANSITIONS, type BranchStatus } from '../../shared/branch/branch-status.ts';
import { expiryOf, type Life } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { nextAccessRevision } from '../access/send-access.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { inActiveProject, onActiveBranch } from '../database/conditions.ts';
import { type Database, inOneBatch, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, type BranchRow, projectBranches } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { isAllowed, transition, whereAllowed } from './branch.ts';
import { hasBranchSlots } from './branch-limit.ts';
import { type BranchSettings, settingStatements } from './branch-settings.ts';

/** When a branch expires, or when it is deleted because it has been expired for long enough. */
const END = sql<number>`case ${projectBranches.status}
  when 'active' then ${projectBranches.expiresAt} when 'expired' then ${projectBranches.deletesAt} end`;

/** The branches whose end has come. */
export const atTheirEnd = (now: Date): SQL => lte(END, now.getTime());

const LEASE_END = sql<number>`case when ${whereAllowed('delete', undefined)} then ${projectBranches.leaseEndsAt} end`;

/** The branches whose lease has ended. */
export const atTheirLeasesEnd = (now: Date): SQL => lte(LEASE_END, now.getTime());

/** The next end of a branch of the project, or of a lease; null if none has one. */
export async function nextEnd(db: Database, projectId: string): Promise<Date | null> {
  const [found] = await db
    .select({
      end: sql<number | null>`min(${END})`,
      lease: sql<number | null>`min(${LEASE_END})`,
    })
    .from(projectBranches)
    .where(eq(projectBranches.projectId, projectId));
  const next = Math.min(found?.end ?? Infinity, found?.lease ?? Infinity);
  return next === Infinity ? null : new Date(next);
}

/**
 * Sets the lifespan, counted from now, and other settings, and records the changes, in one batch. An expired
 * branch becomes active again if the project has a slot for it, which changes the access.
 */
export async function storeLifespan(
  db: Database,
  settings: Settings,
  { branch, life, actor, isProtected, attempts }: LifespanChange,
  now: Date,
): Promise<Result<BranchRow, Failure>> {
  if (branch.isDefault) return fail({ code: 'BRANCH_PROTECTED' });
  const { id: branchId, projectId } = branch;
  const change = {
    ...life,
    expiresAt: expiryOf(life, now),
    status: BRANCH_TRANSITIONS.extend.to,
    deletesAt: null,
    updatedAt: now,
  };
  const thisBranch = eq(projectBranches.id, branchId);
  const isIn = (status: BranchStatus) =>
    isThere(projectBranches, and(thisBranch, eq(projectBranches.status, status)));
  const [hasSlot, limitReached] = hasBranchSlots(branch, settings, 1);
  const metadata = { from: branch.lifespan, to: life.lifespan, ttl_seconds: life.ttlSeconds };
  const about = { projectId, branchId, metadata };
  const event = auditEvent('branch.lifespan.changed', actor, about, now);
  const written = await guardedWrite(db, {
    first: [auditEvents, event],
    require: [
      ...inActiveProject(projectId, actor.tenantId),
      [isAllowed('extend', thisBranch), 'BRANCH_NOT_ACTIVE'],
      // An active branch has its slot already.
      [sql`${isIn('active')} or ${hasSlot}`, limitReached],
    ],
    rest: (isWritten) => {
      const others = settingStatements(db, branch, { isProtected, attempts }, actor, isWritten, now);
      return [
        nextAccessRevision(db, projectId, sql`${isIn('expired')} and ${isWritten}`),
        db.update(projectBranches).set(change).where(and(thisBranch, isWritten)),
        ...others.before,
        others.update,
      ];
    },
    returns: db.select().from(projectBranches).where(thisBranch),
  });
  return written.ok ? ok({ ...branch, ...written.value.at(0) }) : written;
}

/**
 * When a branch that expires now is deleted. It needs no slot meanwhile, so it is not kept for longer than it
 * had one: otherwise lives of a minute would fill the host. Counted from now: nobody had notice of the
 * deletion before, however late the expiry is.
 */
const deletesAt = (maxSeconds: number, now: Date): SQL<Date> =>
  sql`${now.getTime()} + min(${maxSeconds}, coalesce(${projectBranches.ttlSeconds}, ${maxSeconds})) * 1000`;

/**
 * Expires the project's branches whose lifespan has ended (specification 3.1), with their audit events, in
 * one batch that also changes the access: applying it closes their logins and ends their sessions.
 */
export async function expireBranches(
  db: Database,
  { EXPIRED_RETENTION_SECONDS }: Pick<Settings, 'EXPIRED_RETENTION_SECONDS'>,
  projectId: string,
  now: Date,
): Promise<void> {
  const due = and(eq(projectBranches.projectId, projectId), lte(projectBranches.expiresAt, now));
  const dueRows = await db
    .select()
    .from(projectBranches)
    .where(and(due, eq(projectBranches.status, 'active')));
  if (dueRows.length === 0) return;
  await inOneBatch(db, [
    ...dueRows.map(({ id, tenantId, branchName, expiresAt, ttlSeconds }) => {
      const retention = Math.min(EXPIRED_RETENTION_SECONDS, ttlSeconds ?? EXPIRED_RETENTION_SECONDS);
      const metadata = {
        branch_name: branchName,
        expires_at: expiresAt?.toISOString(),
        deletes_at: new Date(now.getTime() + retention * 1000).toISOString(),
      };
      const about = { projectId, branchId: id, metadata };
      const event = auditEvent('branch.expired', noActor(tenantId), about, now);
      return insertIf(db, auditEvents, event, isAllowed('expire', and(due, eq(projectBranches.id, id))));
    }),
    nextAccessRevision(db, projectId, isAllowed('expire', due)),
    transition(db, 'expire', due, now, deletesAt(EXPIRED_RETENTION_SECONDS, now)),
  ]);
}

/**
 * The end of a branch's lease that begins now, in an update of branches; null for a branch without a lease.
 */
export const leaseEnd = (now: Date): SQL<Date | null> => sql`${now.getTime()} + lease_seconds * 1000`;

/**
 * Lets the lease end later, or sooner, counted from now. It is not audited, because a client renews it every
 * few seconds. A lease that has ended is never renewed: its branch is about to be deleted.
 */
export async function storeRenewal(
  db: Database,
  { branch, leaseSeconds, actor }: LeaseRenewal,
  now: Date,
): Promise<Result<BranchRow, Failure>> {
  if (branch.leaseSeconds === null) return fail({ code: 'BRANCH_NOT_LEASED' });
  const thisBranch = eq(projectBranches.id, branch.id);
  const change = {
    leaseSeconds: leaseSeconds ?? undefined,
    leaseEndsAt: leaseSeconds === null ? leaseEnd(now) : new Date(now.getTime() + leaseSeconds * 1000),
    updatedAt: now,
  };
  const isOver = isThere(projectBranches, and(thisBranch, lte(projectBranches.leaseEndsAt, now)));
  const written = await guardedWrite(db, {
    first: (isAllowed) => db.update(projectBranches).set(change).where(and(thisBranch, isAllowed)),
    require: [[sql`not ${isOver}`, 'NOT_FOUND'], ...onActiveBranch(branch, actor.tenantId)],
    returns: db.select().from(projectBranches).where(thisBranch),
  });
  return written.ok ? ok({ ...branch, ...written.value.at(0) }) : written;
}

export interface LifespanChange extends BranchSettings {
  branch: BranchRow;
  life: Life;
  hostId: string;
  actor: Actor;
}

export interface LeaseRenewal {
  branch: BranchRow;
  /** Null: as long as before. */
  leaseSeconds: number | null;
  actor: Actor;
}
