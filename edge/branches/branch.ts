import { and, getTableColumns, inArray, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import { BlockReason, CLOSED_NETWORKS_MAX } from '../../shared/block.ts';
import {
  BRANCH_STATUSES,
  BRANCH_TRANSITIONS,
  type BranchEvent,
  statusesAllowing,
} from '../../shared/branch/branch-status.ts';
import { DatabaseSettings } from '../../shared/branch/database-settings.ts';
import { Labels } from '../../shared/branch/labels.ts';
import { RECORDED_LIFESPANS } from '../../shared/branch/lifespan.ts';
import type { Failure } from '../../shared/failures.ts';
import { BRANCH_DATA } from '../../shared/masking.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { BRANCH_HOLDS, type BranchContent, type StoredBlock } from '../database/column-types.ts';
import type { Database, Statement } from '../database/database.ts';
import { type BranchRow, type ProjectRow, projectBranches } from '../database/schema.ts';

/** The block that a record shows: of the whole branch, whatever address a client connects from. */
export const Blocked = z
  .strictObject({
    reason: z.enum([...BlockReason.exclude(['attempts']).options, ...BRANCH_HOLDS]).meta({
      description:
        '`import`: an import fills the branch, and opens it at its end. `following`: it follows a database elsewhere, and can be read. `until` of both moves on until then. The others are what it took too much of. `autovacuum`: functions of its tables held workers of autovacuum, which is off for ' +
        'these tables now; after the functions are changed, `ALTER TABLE … RESET (autovacuum_enabled)` turns it on. ' +
        '`connections`: its project or its tenant had too many. `transaction_ids`: transactions, and locks that many ' +
        'transactions hold on one row. `files`: its project has too many tables and indexes, and it made more.',
      example: 'disk',
    }),
    until: z.iso.datetime(),
  })
  .nullable();
type Blocked = z.output<typeof Blocked>;

/** Blocks end by themselves, so that a lost notification of their end has no effect. */
const inForce = (blocks: readonly StoredBlock[], now: number) =>
  blocks.filter(({ until }) => Date.parse(until) > now);

/** Nobody knows when these end, so such a block is shown as one that the next reading prolongs. */
const HELD_FOR_MS = 60_000;

/** The block in force that lasts longest; null if there is none. @param hold of the gateway, before all others */
export function blockedOf(
  blocks: readonly StoredBlock[],
  hold: BranchRow['hold'],
  now = Date.now(),
): Blocked {
  if (hold !== null) return { reason: hold, until: new Date(now + HELD_FOR_MS).toISOString() };
  const ofBranch = inForce(blocks, now).flatMap(({ reason, until }) =>
    reason === 'attempts' ? [] : [{ reason, until }],
  );
  return ofBranch.reduce<Blocked>(
    (longest, block) => (longest && Date.parse(longest.until) >= Date.parse(block.until) ? longest : block),
    null,
  );
}

/** Until when connections are refused because of too many attempts; null if they are not. */
export const connectionsBlockedUntil = (blocks: readonly StoredBlock[], now = Date.now()): string | null =>
  inForce(blocks, now).find(({ reason }) => reason === 'attempts')?.until ?? null;

/** A network that is refused, because it made too many connection attempts. */
const ClosedTo = z.strictObject({
  network: z.string().nullable().meta({ description: 'Null: every network.', example: '203.0.113.7/32' }),
  until: z.iso.datetime(),
  attempts: z.int().meta({ description: 'The attempts a minute that it reached.', example: 50 }),
  message: z.string().meta({
    description: 'The same for a person, with what to do.',
    example:
      'Closed to 203.0.113.7/32 until 12:01:00 UTC, after 50 connection attempts in a minute. Raise connection_attempts_per_minute of the branch to open it now.',
  }),
});
type ClosedTo = z.output<typeof ClosedTo>;

/** The networks that are refused because of too many connection attempts. */
export const closedTo = (blocks: readonly StoredBlock[], now = Date.now()): ClosedTo[] =>
  blocks
    .flatMap(({ networks = [] }) => networks)
    .filter(({ until }) => Date.parse(until) > now)
    .map(({ network, until, attempts }) => ({
      network,
      until,
      attempts,
      message: `Closed to ${network ?? 'every network'} until ${until.slice(11, 19)} UTC, after ${attempts} connection attempts in a minute. Raise connection_attempts_per_minute of the branch to open it now.`,
    }));

const Id = z.uuid();
const Timestamp = z.iso.datetime();

/** What a branch or a snapshot has of its source, as a record shows it. */
export const CONTENT_FIELDS = {
  data: z.enum(BRANCH_DATA).meta({
    description:
      '`full`: everything. `masked`: the columns with a rule of the masking policy have other values. `none`: no rows, but for those of `keep_tables`.',
    example: 'full',
  }),
  keep_tables: z
    .array(z.string())
    .meta({ description: 'The tables whose rows were kept, if `data` is `none`.', example: [] }),
  masking_version: z
    .int()
    .nullable()
    .meta({ description: 'The version of the policy. Null unless it is masked.', example: null }),
  checked_at: Timestamp.nullable().meta({
    description:
      'When its values had been compared with those of the source. Null if they are the same, or it is being made.',
  }),
};

export const toContentResponse = ({ data, keepTables, maskingVersion, checkedAt }: BranchContent) => ({
  data,
  keep_tables: keepTables,
  masking_version: maskingVersion,
  checked_at: checkedAt?.toISOString() ?? null,
});

/** The columns of a row that say what it has. */
export const contentOf = ({ data, keepTables, maskingVersion, checkedAt }: BranchContent): BranchContent => ({
  data,
  keepTables,
  maskingVersion,
  checkedAt,
});

/** Whether some of its values are those of `main`. */
export const isUnmasked = ({ data, keepTables }: Pick<BranchContent, 'data' | 'keepTables'>): boolean =>
  data === 'full' || (data === 'none' && keepTables.length > 0);

/** The same as a condition on the row of a branch. */
export const isUnmaskedRow = sql`(${projectBranches.data} = 'full'
  or (${projectBranches.data} = 'none' and ${projectBranches.keepTables} <> '[]'))`;

/** For those who get masked data only. @param message what else is to be done */
export const maskedOnlyFailure = (
  message = 'This project gives you masked data only. Create a branch with data masked or none, or ask an owner or admin.',
): Failure => ({
  code: 'FORBIDDEN',
  fields: { message, required: 'role owner, admin, or an API key with data.full' },
  reason: 'masked only',
});

/**
 * Members have the connection URLs of masked branches, which a reset does not change.
 * @returns or FORBIDDEN for a reset that would fill such a branch with unmasked data
 */
export const checkResetTo = (
  { maskedOnly }: Pick<ProjectRow, 'maskedOnly'>,
  branch: BranchContent,
  content: BranchContent,
): Result<null, Failure> =>
  maskedOnly && isUnmasked(content) && !isUnmasked(branch)
    ? fail(
        maskedOnlyFailure(
          'Members may have the connection URLs of this branch, and the project gives them masked data only. Create another branch.',
        ),
      )
    : ok(null);

export const FULL_CONTENT: BranchContent = {
  data: 'full',
  keepTables: [],
  maskingVersion: null,
  checkedAt: null,
};

/** A branch as the create response shows it (specification 2.2 without `deleted_at` and `updated_at`). */
export const CreatedBranch = z
  .strictObject({
    id: Id,
    project_id: Id,
    parent_branch_id: Id.nullable().meta({ description: 'The branch that this one was cloned from.' }),
    branch_name: z.string().meta({ example: 'checkout-redesign' }),
    database_name: z.string().meta({ example: 'db_web_shop_prod_br_checkout-redesign' }),
    source_database: z
      .string()
      .meta({ description: 'The database that was cloned.', example: 'db_web_shop_prod' }),
    status: z.enum(BRANCH_STATUSES).meta({ example: 'active' }),
    lifespan: z.enum(RECORDED_LIFESPANS).meta({ description: '`custom`: created with `ttl_seconds`.' }),
    expires_at: Timestamp.nullable().meta({ description: 'Null: the branch does not expire.' }),
    ttl_seconds: z.int().nullable().meta({
      description: 'Length of the lifespan in seconds. Null: the branch does not expire.',
      example: 604_800,
    }),
    lease_seconds: z.int().nullable().meta({
      description: 'Length of the lease in seconds. Null: the branch has no lease.',
      example: null,
    }),
    lease_ends_at: Timestamp.nullable().meta({
      description: 'The branch is deleted then, unless its lease is renewed. Null: it has no lease.',
      example: null,
    }),
    labels: Labels,
    ...CONTENT_FIELDS,
    connection_attempts_per_minute: z.int().meta({
      description:
        'Connection attempts a minute that the branch accepts from its admitted networks together, successful ones included.',
      example: 50,
    }),
    settings: DatabaseSettings.meta({
      description: 'Settings of PostgreSQL that every new session of the branch has.',
      example: { search_path: 'app, public' },
    }),
    is_default: z.boolean().meta({ description: 'True for `main` only.', example: false }),
    protected: z.boolean().meta({
      description:
        'It cannot be deleted, neither by a request nor at the end of its lease or of its retention, and a reset needs its name as `confirm`. True for `main`, always.',
      example: false,
    }),
    created_by: Id,
    tenant_id: z.string().meta({ example: 'acme' }),
    created_at: Timestamp,
  })
  .meta({ id: 'CreatedBranch' });

/**
 * A branch in lists, lookups and changes: every field of specification 2.2 except `deleted_at`, `deletes_at`,
 * and its blocks.
 */
export const Branch = CreatedBranch.extend({
  deletes_at: Timestamp.nullable().meta({
    description:
      'When this expired branch will be deleted; of a deleted branch, until when it can be restored. Null: neither, or the branch is protected.',
  }),
  updated_at: Timestamp,
  blocked: Blocked.meta({
    description:
      'The database host accepts no connections to the branch until then: an import fills it, or its sessions took too much of what all branches of the host share. Null: not blocked.',
  }),
  connections_blocked_until: Timestamp.nullable().meta({
    description:
      'Connections are refused until then, because of too many connection attempts. Null: they are not.',
  }),
  closed_to: z.array(ClosedTo).max(CLOSED_NETWORKS_MAX).meta({
    description:
      'The networks that are refused because of too many connection attempts. PostgreSQL reports such a refusal as `pg_hba.conf rejects connection` or `no pg_hba.conf entry`.',
  }),
}).meta({ id: 'Branch' });

/** A branch as the response to its reset shows it. */
export const BranchReset = Branch.extend({
  safety_snapshot_id: z.uuid().nullable().meta({
    description: 'The snapshot with what the branch held before. Null: it held nothing that could be kept.',
  }),
}).meta({ id: 'BranchReset' });

/** @param recorded the response of the job, which an earlier release recorded without the snapshot */
export const toResetResponse = (recorded: unknown) => ({
  safety_snapshot_id: null,
  ...(recorded as Partial<z.input<typeof BranchReset>> & z.input<typeof Branch>),
});

export const toCreatedBranchResponse = (row: BranchRow): z.output<typeof CreatedBranch> => ({
  id: row.id,
  project_id: row.projectId,
  parent_branch_id: row.parentBranchId,
  branch_name: row.branchName,
  database_name: row.databaseName,
  source_database: row.sourceDatabase,
  status: row.status,
  lifespan: row.lifespan,
  expires_at: row.expiresAt?.toISOString() ?? null,
  ttl_seconds: row.ttlSeconds,
  lease_seconds: row.leaseSeconds,
  lease_ends_at: row.leaseEndsAt?.toISOString() ?? null,
  labels: row.labels,
  ...toContentResponse(row),
  connection_attempts_per_minute: row.connectionAttempts,
  settings: row.settings,
  is_default: row.isDefault,
  protected: row.protected,
  created_by: row.createdBy,
  tenant_id: row.tenantId,
  created_at: row.createdAt.toISOString(),
});

export const toBranchResponse = (row: BranchRow): z.output<typeof Branch> => ({
  ...toCreatedBranchResponse(row),
  deletes_at: row.deletesAt?.toISOString() ?? null,
  updated_at: row.updatedAt.toISOString(),
  blocked: blockedOf(row.blocks, row.hold),
  connections_blocked_until: connectionsBlockedUntil(row.blocks),
  closed_to: closedTo(row.blocks),
});

/** What every new branch begins with. */
const newborn = (now: Date) => ({
  status: 'creating' as const,
  deletesAt: null,
  leaseEndsAt: null,
  blocks: [],
  hold: null,
  undoneTo: null,
  settings: {},
  ownBytes: null,
  sharedBytes: null,
  deletedAt: null,
  createdAt: now,
  updatedAt: now,
});

/** The row of a branch that is being created. */
export const newBranchRow = (
  chosen: Omit<BranchRow, keyof ReturnType<typeof newborn>>,
  now: Date,
): BranchRow => ({ ...chosen, ...newborn(now) });

export const BranchDeletion = z
  .strictObject({
    id: z.uuid(),
    status: z.literal('deleted'),
    deleted_at: z.iso.datetime(),
    job_id: z.uuid().meta({ description: 'The job that drops or keeps the database of the branch.' }),
    restorable_until: z.iso.datetime().nullable().meta({
      description:
        'Until when the branch can be restored. Null: the deletion is final, because the branch had a lease, or by `purge`.',
    }),
    recoverable_until: z.iso.datetime().nullable().meta({
      description:
        'After a final deletion: until when its data is in the copies and the log from which the database host recovers other branches. No request recovers this one. Null: the deletion is not final, or the host keeps no past.',
    }),
  })
  .meta({ id: 'BranchDeletion' });

/** Until when a host that keeps the past for so many hours has what was deleted; null: it keeps none. */
export const recoverableUntil = (deletedAt: Date, pastHours: number | null): string | null =>
  pastHours === null ? null : new Date(deletedAt.getTime() + 3_600_000 * pastHours).toISOString();

/** @param restorableUntil null: the deletion is final */
export const toDeletionResponse = (
  { id, deletedAt }: BranchRow,
  job: { id: string; createdAt: Date },
  restorableUntil: Date | null,
  { pastHours }: { pastHours: number | null },
): z.output<typeof BranchDeletion> => ({
  id,
  status: 'deleted',
  deleted_at: (deletedAt ?? job.createdAt).toISOString(),
  job_id: job.id,
  restorable_until: restorableUntil?.toISOString() ?? null,
  recoverable_until: restorableUntil === null ? recoverableUntil(job.createdAt, pastHours) : null,
});

/**
 * The whole record of a branch by its columns, for the audit log: the row of a deleted branch goes when its history is
 * no longer kept.
 */
export const branchRecord = (branch: BranchRow): Record<string, unknown> =>
  Object.fromEntries(
    Object.entries(getTableColumns(projectBranches)).map(([key, { name }]) => [
      name,
      branch[key as keyof BranchRow],
    ]),
  );

/** The branches whose status allows the event. */
export const whereAllowed = (event: BranchEvent, branches: SQL | undefined) =>
  and(branches, inArray(projectBranches.status, statusesAllowing(event)));

/** Whether such a branch exists: the condition for statements that precede the event in one batch. */
export const isAllowed = (event: BranchEvent, branches: SQL | undefined): SQL =>
  sql`exists (select 1 from ${projectBranches} where ${whereAllowed(event, branches)})`;

/**
 * Applies the event to the branches whose status allows it.
 * @param deletesAt of branches that expire, or whose databases are kept
 */
export const transition = (
  db: Database,
  event: BranchEvent,
  branches: SQL | undefined,
  now: Date,
  deletesAt: SQL<Date> | null = null,
): Statement => {
  const { to } = BRANCH_TRANSITIONS[event];
  const deletion = to === 'deleted' ? { deletedAt: now } : {};
  return db
    .update(projectBranches)
    .set({ status: to, updatedAt: now, deletesAt, ...deletion })
    .where(whereAllowed(event, branches));
};
