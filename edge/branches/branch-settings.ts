import { and, eq, inArray, ne, or, type SQL, sql } from 'drizzle-orm';
import type { DatabaseSettings, DatabaseSettingsChange } from '../../shared/branch/database-settings.ts';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { nextAccessRevision } from '../access/send-access.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { inActiveProject } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, type BranchRow, projectBranches, projects } from '../database/schema.ts';
import type { Settings } from '../settings.ts';
import { endsOfProtection } from './branch-ends.ts';

/** What a client may change of a branch besides its life; what is left out stays. */
export interface BranchSettings {
  isProtected?: boolean | undefined;
  /** Connection attempts a minute; null: as in the project. */
  attempts?: number | null | undefined;
  /** Changes of the settings of its database. */
  settings?: DatabaseSettingsChange | undefined;
}

/** `main` is always protected. */
const unprotectsMain = ({ isDefault }: BranchRow, { isProtected = true }: BranchSettings) =>
  isDefault && !isProtected;

/**
 * Changes the settings of the branch if `condition` is true, in statements whose last one is the change. The
 * audit comes first: it is of a change only.
 */
export function settingStatements(
  db: Database,
  { EXPIRED_RETENTION_SECONDS }: Pick<Settings, 'EXPIRED_RETENTION_SECONDS'>,
  { id, projectId, branchName, connectionAttempts: from }: BranchRow,
  { isProtected, attempts, settings: change }: BranchSettings,
  actor: Actor,
  condition: SQL,
  now: Date,
) {
  const theBranch = eq(projectBranches.id, id);
  const audited = (
    name: 'branch.protection.changed' | 'branch.connection_attempts.changed' | 'branch.settings.changed',
    difference: SQL | undefined,
    details: Record<string, unknown>,
  ) => {
    const metadata = { branch_name: branchName, ...details };
    const event = auditEvent(name, actor, { projectId, branchId: id, metadata }, now);
    const differs = isThere(projectBranches, and(theBranch, difference));
    return insertIf(db, auditEvents, event, sql`${differs} and ${condition}`);
  };
  const ofProject = sql<number>`(select connection_attempts from ${projects} where id = ${projectId})`;
  const limit =
    attempts === undefined
      ? {}
      : { connectionAttempts: attempts ?? ofProject, hasOwnAttempts: attempts !== null };
  const hasOtherLimit = or(
    sql`${projectBranches.connectionAttempts} <> ${attempts ?? ofProject}`,
    ne(projectBranches.hasOwnAttempts, attempts !== null),
  );
  const protection =
    isProtected === undefined
      ? {}
      : { protected: isProtected, ...endsOfProtection(isProtected, EXPIRED_RETENTION_SECONDS, now) };
  // A merge patch of what the row has then, so that two changes of different settings both count (RFC 7396).
  const wanted =
    change && sql<DatabaseSettings>`json_patch(${projectBranches.settings}, ${JSON.stringify(change)})`;
  const ofDatabase = wanted === undefined ? {} : { settings: wanted };
  return {
    before: [
      ...(wanted === undefined
        ? []
        : [
            audited('branch.settings.changed', sql`${projectBranches.settings} <> ${wanted}`, {
              settings: change,
            }),
            nextAccessRevision(db, projectId, condition),
          ]),
      ...(isProtected === undefined
        ? []
        : [
            audited('branch.protection.changed', ne(projectBranches.protected, isProtected), {
              protected: isProtected,
            }),
          ]),
      ...(attempts === undefined
        ? []
        : [
            audited('branch.connection_attempts.changed', hasOtherLimit, { from, to: attempts }),
            nextAccessRevision(db, projectId, condition),
          ]),
    ],
    update: db
      .update(projectBranches)
      .set({ ...protection, ...limit, ...ofDatabase, updatedAt: now })
      .where(and(theBranch, condition)),
  };
}

/** Changes the settings of the branch, and audits what differs. The host applies the limit of attempts. */
export async function storeSettings(
  db: Database,
  settings: Pick<Settings, 'EXPIRED_RETENTION_SECONDS'>,
  { branch, actor, ...change }: SettingsChange,
  now: Date,
): Promise<Result<BranchRow, Failure>> {
  if (unprotectsMain(branch, change)) return fail({ code: 'BRANCH_PROTECTED' });
  const theBranch = eq(projectBranches.id, branch.id);
  const isKept = and(theBranch, inArray(projectBranches.status, ['creating', 'active', 'expired']));
  const statements = (isAllowed: SQL) =>
    settingStatements(db, settings, branch, change, actor, isAllowed, now);
  const written = await guardedWrite(db, {
    decides: (isAllowed) => statements(isAllowed).update,
    require: [
      ...inActiveProject(branch.projectId, actor.tenantId),
      [isThere(projectBranches, isKept), 'BRANCH_NOT_ACTIVE'],
    ],
    rest: (isAllowed) => statements(isAllowed).before,
    returns: db.select().from(projectBranches).where(theBranch),
  });
  return written.ok ? ok({ ...branch, ...written.value.at(0) }) : written;
}

/** @param confirm the name of the branch, as its users repeat it. @returns or BRANCH_PROTECTED, for a reset */
export function checkConfirmation(
  { protected: isProtected, branchName }: Pick<BranchRow, 'protected' | 'branchName'>,
  confirm: string | undefined,
): Result<null, Failure> {
  return isProtected && confirm !== branchName ? fail({ code: 'BRANCH_PROTECTED' }) : ok(null);
}

export interface SettingsChange extends BranchSettings {
  branch: BranchRow;
  hostId: string;
  actor: Actor;
}
