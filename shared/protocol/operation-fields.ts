import { z } from 'zod';
import { MANAGED_DATABASE, SNAPSHOT_DATABASE } from '../branch/database-name.ts';
import { CREATED_BY } from '../branch/snapshot.ts';
import { BATCH_MAX } from '../limits.ts';
import { Database, Id } from './operation.ts';

/** Schemas that several operations of the link share. */

/** What can be cloned: a branch's database, or a snapshot. */
export const Source = z.string().regex(new RegExp(`${MANAGED_DATABASE.source}|${SNAPSHOT_DATABASE.source}`));

export const BranchIdentity = {
  job_id: Id,
  project_id: Id,
  branch_id: Id,
  database: Database,
};

/** The branches that one job creates. All of them have the same content. */
export const newBranches = <Member extends z.ZodRawShape>(member: Member) => ({
  job_id: Id,
  project_id: Id,
  branches: z
    .array(
      z.strictObject({
        branch_id: Id,
        database: Database,
        /**
         * The clone is built under this id, of which the host has one clone at most. The inventory has it as
         * `made_by`.
         */
        build_id: Id,
        ...member,
      }),
    )
    .min(1)
    .max(BATCH_MAX),
});

export const Milliseconds = z.number().nonnegative();

export const CloneResult = z.strictObject({
  /** False when an earlier call with these ids created the clone. */
  created: z.boolean(),
  /** How the first branch was made; null if it was there. */
  created_by: z.enum(CREATED_BY).nullable(),
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
