import { and, eq, gte, ne, type SQL, sql } from 'drizzle-orm';
import { BRANCH_ROLES } from '../../shared/branch/login.ts';
import {
  AUTOMATIC,
  nextSnapshotAt,
  type SnapshotSchedule,
  type Spares,
  storedSpares,
} from '../../shared/branch/snapshot.ts';
import type { Failure } from '../../shared/failures.ts';
import type { Durability } from '../../shared/protocol/durability.ts';
import { ok, type Result } from '../../shared/result.ts';
import { newPasswords, rotationStatements } from '../access/credentials.ts';
import { nextAccessRevision } from '../access/send-access.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { isUnmaskedRow } from '../branches/branch.ts';
import type { Actor } from '../database/column-types.ts';
import { isOfTenant } from '../database/conditions.ts';
import { type Database, insertAllIf, insertIf, isOneOf, isThere } from '../database/database.ts';
import { guardedWrite, type Requirement } from '../database/guarded-write.ts';
import { auditEvents, branchCredentials, projectBranches, projects } from '../database/schema.ts';
import { hasRoomOn } from '../hosts/host.ts';
import { hasStandby } from '../hosts/pair.ts';
import { replacingKey } from '../masking/policy.ts';
import type { Settings } from '../settings.ts';
import { type ProjectView, projectViews } from '../tenancy/project-access.ts';
import { hasQuotaFor, tenantQuotaReached, tenantUsage } from '../tenancy/tenant-caps.ts';

/** The fields that a project's users may change. */
interface ProjectChange {
  name?: string | undefined;
  storage_quota_gib?: number | undefined;
  /** Null: none. */
  snapshot_schedule?: SnapshotSchedule | null | undefined;
  /** Connection attempts per minute of the branches without a limit of their own. */
  connection_attempts_per_minute?: number | undefined;
  masked_only?: boolean | undefined;
  /** Only with `masked_only`. */
  rotate_credentials?: UnmaskedRotation | undefined;
  spares?: Spares | undefined;
  change_approvals?: number | undefined;
  durability?: Durability | undefined;
}

/** The branches whose passwords are replaced when members are to get masked data only: applications may use those of main. */
export const UNMASKED_ROTATIONS = ['all', 'all_but_main'] as const;
export type UnmaskedRotation = (typeof UNMASKED_ROTATIONS)[number];

/** The audit events of a change: one for each field that gets another value. */
const EVENTS = {
  'project.renamed': (from: ProjectView, to: ProjectChange) => [from.name, to.name],
  'project.quota.changed': (from: ProjectView, to: ProjectChange) => [
    from.storageQuotaGib,
    to.storage_quota_gib,
  ],
  'project.connection_attempts.changed': (from: ProjectView, to: ProjectChange) => [
    from.connectionAttempts,
    to.connection_attempts_per_minute,
  ],
  'project.masked_only.changed': (from: ProjectView, to: ProjectChange) => [from.maskedOnly, to.masked_only],
  'project.spares.changed': (from: ProjectView, to: ProjectChange) => [from.spares ?? AUTOMATIC, to.spares],
  'project.change_approvals.changed': (from: ProjectView, to: ProjectChange) => [
    from.changeApprovals,
    to.change_approvals,
  ],
  'project.durability.changed': (from: ProjectView, to: ProjectChange) => [from.durability, to.durability],
  'project.snapshot_schedule.changed': (from: ProjectView, to: ProjectChange) => [
    from.snapshotSchedule,
    to.snapshot_schedule,
  ],
} as const;

/** Branches with unmasked data and with passwords, deleted ones that can be restored among them. */
const unmaskedOf = (projectId: string) =>
  and(
    eq(projectBranches.projectId, projectId),
    isUnmaskedRow,
    sql`exists (select 1 from ${branchCredentials} where ${branchCredentials.branchId} = ${projectBranches.id})`,
  );

/** The branches with unmasked data whose passwords can have been given out. */
export const unmaskedBranches = (db: Database, projectId: string) =>
  db
    .select({ id: projectBranches.id, isDefault: projectBranches.isDefault })
    .from(projectBranches)
    .where(unmaskedOf(projectId));

/** The branches whose passwords a rotation replaces. */
export const rotatedOf = <T extends { isDefault: boolean }>(
  branches: readonly T[],
  which: UnmaskedRotation,
): T[] => branches.filter(({ isDefault }) => which === 'all' || !isDefault);

const BEING_CREATED =
  'A branch with unmasked data is being created, and its passwords cannot be replaced before it is there. Nothing was changed. Repeat the request shortly.';

/** New passwords for all branches with unmasked data, as a part of the change of a project. */
async function unmaskedRotation(
  db: Database,
  keys: Settings['CREDENTIAL_KEYS'],
  { projectId, which, actor }: { projectId: string; which: UnmaskedRotation; actor: Actor },
  now: Date,
) {
  const found = await unmaskedBranches(db, projectId);
  const ids = rotatedOf(found, which).map(({ id }) => id);
  const passwords = await newPasswords(keys, ids);
  const metadata = { roles: BRANCH_ROLES, reason: 'masked_only' };
  const events = ids.map((branchId) =>
    auditEvent('branch.credentials.rotated', actor, { projectId, branchId, metadata }, now),
  );
  const known = isOneOf(
    projectBranches.id,
    found.map(({ id }) => id),
  );
  const isOpen = sql`(${eq(projectBranches.status, 'creating')} or not ${known})`;
  const busy = { code: 'HOST_BUSY', fields: { message: BEING_CREATED } } as const;
  return {
    require: [
      [sql`not ${isThere(projectBranches, and(unmaskedOf(projectId), isOpen))}`, busy],
    ] satisfies Requirement[],
    rest: (isAllowed: SQL) => [
      insertAllIf(db, auditEvents, events, isAllowed),
      ...rotationStatements(db, projectId, passwords, isAllowed, now),
    ],
  };
}

/** Branches without a limit of their own get that of the project, which the host then applies. */
const attemptsOfBranches = (db: Database, projectId: string, connectionAttempts: number, condition: SQL) => {
  const inherits = and(eq(projectBranches.projectId, projectId), eq(projectBranches.hasOwnAttempts, false));
  return [
    db.update(projectBranches).set({ connectionAttempts }).where(and(inherits, condition)),
    nextAccessRevision(db, projectId, condition),
  ];
};

/** The first scheduled snapshot comes one interval after the change. */
const scheduled = (snapshotSchedule: SnapshotSchedule | null | undefined, now: Date) =>
  snapshotSchedule === undefined
    ? {}
    : { snapshotSchedule, snapshotDueAt: snapshotSchedule && nextSnapshotAt(snapshotSchedule, now) };

/**
 * Changes the project and audits the change, in one batch.
 * A quota can always be lowered, also above the limit of the tenant or beyond the room of the host.
 * @returns the changed project, or NOT_FOUND, PROJECT_NOT_ACTIVE, QUOTA_ABOVE_SELF_SERVICE_CAP,
 *   TENANT_QUOTA_REACHED, HOST_FULL, NO_STANDBY for `sync`, HOST_BUSY while a branch is created whose passwords are to be replaced
 */
export async function changeProject(
  db: Database,
  settings: Settings,
  project: ProjectView,
  change: ProjectChange,
  actor: Actor,
): Promise<Result<ProjectView, Failure>> {
  const { name, storage_quota_gib: storageQuotaGib, snapshot_schedule: snapshotSchedule } = change;
  const { connection_attempts_per_minute: connectionAttempts } = change;
  const { id: projectId } = project;
  const now = new Date();
  const theProject = eq(projects.id, projectId);
  const isProject = (condition: SQL) => isThere(projects, and(theProject, condition));
  const usage = tenantUsage(settings, actor.tenantId, projectId);
  const wantedGib = storageQuotaGib ?? 0;
  const isLower = isProject(gte(projects.storageQuotaGib, wantedGib));
  const cap = sql`(select storage_quota_cap_gib from ${projects} where ${theProject})`;
  const quotaRequirements: Requirement[] = [
    [sql`${wantedGib} <= ${cap}`, { code: 'QUOTA_ABOVE_SELF_SERVICE_CAP', fields: { limit: cap } }],
    [sql`${isLower} or ${hasQuotaFor(usage, wantedGib)}`, tenantQuotaReached(usage)],
    [sql`${isLower} or ${hasRoomOn(settings, project.hostId, projectId, wantedGib)}`, 'HOST_FULL'],
  ];
  const rotation =
    change.rotate_credentials &&
    (await unmaskedRotation(
      db,
      settings.CREDENTIAL_KEYS,
      { projectId, which: change.rotate_credentials, actor },
      now,
    ));
  const rekey = change.masked_only && (await replacingKey(db, settings.CREDENTIAL_KEYS, projectId, now));
  const showsFullData = isProject(eq(projects.maskedOnly, false));
  const events = (Object.keys(EVENTS) as (keyof typeof EVENTS)[]).flatMap((event) => {
    const [from, to] = EVENTS[event](project, change);
    if (to === undefined || JSON.stringify(to) === JSON.stringify(from)) return [];
    return auditEvent(event, actor, { projectId, metadata: { from, to } }, now);
  });
  // Only the requested fields, so that a concurrent change of another field is not reverted.
  const values = {
    name,
    storageQuotaGib,
    connectionAttempts,
    maskedOnly: change.masked_only,
    durability: change.durability,
    changeApprovals: change.change_approvals,
    spares: change.spares === undefined ? undefined : storedSpares(change.spares),
    ...scheduled(snapshotSchedule, now),
    updatedAt: now,
  };
  const written = await guardedWrite(db, {
    decides: (isAllowed) => db.update(projects).set(values).where(and(theProject, isAllowed)),
    require: [
      [isOfTenant(projects, projectId, actor.tenantId), 'NOT_FOUND'],
      [isProject(ne(projects.status, 'deleting')), 'PROJECT_NOT_ACTIVE'],
      ...(storageQuotaGib === undefined ? [] : quotaRequirements),
      ...(rotation?.require ?? []),
      ...(change.durability === 'sync' ? [[hasStandby(projectId), 'NO_STANDBY'] satisfies Requirement] : []),
    ],
    rest: (isAllowed) => [
      ...events.map((event) => insertIf(db, auditEvents, event, isAllowed)),
      ...(connectionAttempts === undefined
        ? []
        : attemptsOfBranches(db, projectId, connectionAttempts, isAllowed)),
      ...(rotation?.rest(isAllowed) ?? []),
      ...(rekey ? [rekey(sql`${isAllowed} and ${showsFullData}`)] : []),
      ...(change.spares === undefined && change.durability === undefined
        ? []
        : [nextAccessRevision(db, projectId, isAllowed)]),
    ],
    returns: projectViews(db).where(theProject),
  });
  return written.ok ? ok({ ...project, ...written.value.at(0) }) : written;
}
