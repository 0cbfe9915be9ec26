import { and, eq, lte, sql } from 'drizzle-orm';
import { BRANCH_TRANSITIONS } from '../../shared/branch/branch-status.ts';
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
import { isAllowed, transition } from './branch.ts';
import { deletesAt, leaseEnd } from './branch-ends.ts';
import { type BranchSettings, settingStatements } from './branch-settings.ts';

/**
 * Sets the lifespan, counted from now, and other settings, and records the changes, in one batch. An expired
 * branch becomes active again, which changes the access. The branch has its place and its share of the quota
 * already.
 */
export async function storeLifespan(
  db: Database,
  settings: Pick<Settings, 'EXPIRED_RETENTION_SECONDS'>,
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
  const isExpired = isThere(projectBranches, and(thisBranch, eq(projectBranches.status, 'expired')));
  const metadata = { from: branch.lifespan, to: life.lifespan, ttl_seconds: life.ttlSeconds };
  const about = { projectId, branchId, metadata };
  const event = auditEvent('branch.lifespan.changed', actor, about, now);
  const written = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [
      ...inActiveProject(projectId, actor.tenantId),
      [isAllowed('extend', thisBranch), 'BRANCH_NOT_ACTIVE'],
    ],
    rest: (isWritten) => {
      const others = settingStatements(
        db,
        settings,
        branch,
        { isProtected, attempts },
        actor,
        isWritten,
        now,
      );
      return [
        nextAccessRevision(db, projectId, sql`${isExpired} and ${isWritten}`),
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
    ...dueRows.map(({ id, tenantId, branchName, expiresAt, ttlSeconds, protected: isProtected }) => {
      const retention = Math.min(EXPIRED_RETENTION_SECONDS, ttlSeconds ?? EXPIRED_RETENTION_SECONDS);
      const metadata = {
        branch_name: branchName,
        expires_at: expiresAt?.toISOString(),
        deletes_at: isProtected ? null : new Date(now.getTime() + retention * 1000).toISOString(),
      };
      const about = { projectId, branchId: id, metadata };
      const event = auditEvent('branch.expired', noActor(tenantId), about, now);
      return insertIf(db, auditEvents, event, isAllowed('expire', and(due, eq(projectBranches.id, id))));
    }),
    nextAccessRevision(db, projectId, isAllowed('expire', due)),
    transition(
      db,
      'expire',
      due,
      now,
      sql`case when not protected then ${deletesAt(EXPIRED_RETENTION_SECONDS, now)} end`,
    ),
  ]);
}

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
    leaseEndsAt: leaseSeconds === null ? leaseEnd(now) : leaseEnd(now, leaseSeconds),
    updatedAt: now,
  };
  const isOver = isThere(projectBranches, and(thisBranch, lte(projectBranches.leaseEndsAt, now)));
  const written = await guardedWrite(db, {
    decides: (isAllowed) => db.update(projectBranches).set(change).where(and(thisBranch, isAllowed)),
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
