import { z } from 'zod';
import { MANAGED_DATABASE, SNAPSHOT_DATABASE } from '../branch/database-name.ts';
import { BATCH_MAX } from '../limits.ts';

/** Schemas that several operations of the link share. */

export const Id = z.uuid();
/** A database name of this service. Any other name is rejected before it reaches SQL or a rule file. */
export const Database = z.string().regex(MANAGED_DATABASE);
/** What can be cloned: a branch's database, or a snapshot. */
export const Source = z.string().regex(new RegExp(`${MANAGED_DATABASE.source}|${SNAPSHOT_DATABASE.source}`));

export const BranchIdentity = {
  job_id: Id,
  project_id: Id,
  branch_id: Id,
  database: Database,
};

/** The branches of one job, which have the same source. Their databases are built under the ids of the branches. */
export const batchOf = <Member extends z.ZodRawShape>(member: Member) => ({
  job_id: Id,
  project_id: Id,
  branches: z
    .array(z.strictObject({ branch_id: Id, database: Database, ...member }))
    .min(1)
    .max(BATCH_MAX),
});

export const Milliseconds = z.number().nonnegative();

export const CloneResult = z.strictObject({
  /** False when an earlier call with these ids created the clone. */
  created: z.boolean(),
  strategy: z.enum(['reflink', 'file_copy', 'wal_log']).nullable(),
  /** Duration of the `CREATE DATABASE` statement. */
  clone_ms: Milliseconds,
  /** Milliseconds for which pooled clients of the source were paused. */
  paused_ms: Milliseconds,
  source_bytes: z.int().nonnegative(),
});
/** Milliseconds to wait until the source has no open transaction; then the call fails with `SOURCE_BUSY`. */
export const BusyWait = z.int().min(0).max(30_000);
export const Password = z.string().min(16).max(128);

export const operation = <P extends z.ZodType, R extends z.ZodType>(definition: {
  /** One line for the control tool's help and `docs/protocol.md`. */
  summary: string;
  params: P;
  result: R;
  /** Milliseconds that the edge waits for the reply; then the call fails with `HOST_TIMEOUT`. */
  deadline: number;
  /** Calls run concurrently: none joins an identical one, or waits for another about the same branch. */
  concurrent?: true;
}) => definition;
