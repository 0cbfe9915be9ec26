import { z } from 'zod';
import { SparesState } from '../branch/snapshot.ts';
import { KEEP_TABLES_MAX, MaskingRules, PREVIEW_ROWS_MAX, TableReference, UNLISTED } from '../masking.ts';
import { Database, Id, operation } from './operation.ts';
import { BranchIdentity, BusyWait, CloneResult, Source } from './operation-fields.ts';

/** Operations on snapshots, and those that leave one behind: a reset and a deletion that can be undone. */

const Bytes = z.int().nonnegative();

/** The state of a branch that is replaced or deleted, as a snapshot. */
const LeftBehind = z.strictObject({
  /** False if the branch had no database. */
  kept: z.boolean(),
  size_bytes: Bytes,
});

/** 32 bytes, base64. */
const Key = z.string().regex(/^[A-Za-z0-9+/]{43}=$/);

const PreviewedRow = z.array(z.string().nullable());

/** What the host takes of a policy. */
const Masking = z.strictObject({
  rules: MaskingRules,
  unlisted: z.enum(UNLISTED),
  key: Key,
});
export type Masking = z.output<typeof Masking>;

/** Why a policy does not cover a branch; `column` is null for a whole table. */
const MaskingProblem = z.strictObject({
  table: z.string(),
  column: z.string().nullable(),
  reason: z.string(),
});

export const SNAPSHOT_OPERATIONS = {
  'spares.read': operation({
    summary: 'Count the spares of a project, those that were asked for, and say what the rest waits for',
    params: z.strictObject({ project_id: Id }),
    result: SparesState,
    deadline: 5_000,
    concurrent: true,
  }),

  'snapshot.take': operation({
    summary: 'Clone a branch as a snapshot, to which nobody can connect',
    params: z.strictObject({
      project_id: Id,
      branch_id: Id,
      snapshot_id: Id,
      source: Database,
      busy_wait: BusyWait,
      /** Takes none if the source has not changed since this snapshot of it; `null`: takes it in any case. */
      unless_same_as: Id.nullable(),
      /** The snapshot is among the first to go when the disk is short. */
      checkpoint: z.literal(true).optional(),
    }),
    result: z.strictObject({
      /** False if the source has not changed. */
      taken: z.boolean(),
      size_bytes: Bytes,
      independent: z.boolean(),
    }),
    deadline: 900_000,
  }),

  'snapshot.mask': operation({
    summary: 'Clone a branch as a snapshot whose columns with a rule have other values, or that is empty',
    params: z.strictObject({
      job_id: Id,
      project_id: Id,
      branch_id: Id,
      snapshot_id: Id,
      /** The database of the branch, or a snapshot of what it had at an earlier time. */
      source: Source,
      busy_wait: BusyWait,
      /** Null: the rows of all tables are removed, but for those of `keep_tables`. */
      masking: Masking.nullable(),
      keep_tables: z.array(TableReference).max(KEEP_TABLES_MAX),
      /** As for `snapshot.take`. */
      unless_same_as: Id.nullable(),
    }),
    result: z.strictObject({
      /** Nothing was made, because the source has not changed. */
      unchanged: z.boolean(),
      /** False if the policy does not cover the branch, and nothing was made. */
      masked: z.boolean(),
      size_bytes: Bytes,
      /** Why it does not. */
      problems: z.array(MaskingProblem),
    }),
    deadline: 900_000,
  }),

  'masking.inspect': operation({
    summary:
      'Compare a policy with a branch as it is, and list the columns without a rule that look personal',
    params: z.strictObject({
      branch_id: Id,
      database: Database,
      rules: MaskingRules,
      unlisted: z.enum(UNLISTED),
      /** Also by samples of the values. */
      sample: z.boolean(),
    }),
    result: z.strictObject({
      problems: z.array(MaskingProblem),
      suggestions: z.array(
        z.strictObject({
          table: z.string(),
          column: z.string(),
          type: z.string(),
          reason: z.string(),
          /** A function that fits the column. */
          with: z.string(),
        }),
      ),
    }),
    deadline: 15_000,
    concurrent: true,
  }),

  'masking.preview': operation({
    summary:
      'Show rows of a table as they are, and as a policy would replace their values; nothing is changed',
    params: z.strictObject({
      branch_id: Id,
      database: Database,
      rules: MaskingRules,
      key: Key,
      table: TableReference,
      limit: z.int().min(1).max(PREVIEW_ROWS_MAX),
    }),
    result: z.strictObject({
      /** `with` is null for a column that stays as it is. */
      columns: z.array(z.strictObject({ name: z.string(), type: z.string(), with: z.string().nullable() })),
      /** Values as text, cut after 200 characters, in the order of the columns. */
      rows: z.array(z.strictObject({ before: PreviewedRow, after: PreviewedRow })),
      /** What is wrong with the rules of this table; their columns stay as they are. */
      problems: z.array(MaskingProblem),
    }),
    deadline: 15_000,
    concurrent: true,
  }),

  'snapshot.drop': operation({
    summary: 'Drop a snapshot, or the database of a deleted branch',
    params: z.strictObject({ project_id: Id, snapshot_id: Id }),
    result: z.strictObject({ dropped: z.boolean() }),
    deadline: 120_000,
  }),

  'branch.keep': operation({
    summary: 'Close access to the branch, drop its logins, and keep its database as a snapshot',
    /** `made_by` as for `branch.drop`. */
    params: z.strictObject({ ...BranchIdentity, snapshot_id: Id, made_by: Id.nullable() }),
    result: LeftBehind,
    deadline: 120_000,
  }),

  'reset.clone': operation({
    summary: 'Clone the source of a reset under a temporary name that no tenant can reach',
    params: z.strictObject({ ...BranchIdentity, source: Source, busy_wait: BusyWait }),
    result: CloneResult,
    deadline: 900_000,
  }),

  'reset.swap': operation({
    summary:
      'End the sessions of a branch, and replace its database by the clone; the old one becomes a snapshot',
    params: z.strictObject({ ...BranchIdentity, snapshot_id: Id }),
    result: LeftBehind,
    deadline: 60_000,
  }),

  'reset.cancel': operation({
    summary: 'Drop the clone of a reset, unless it was swapped in',
    params: z.strictObject({ job_id: Id, project_id: Id, branch_id: Id, snapshot_id: Id }),
    /** `left`: it was swapped in, which left this behind. */
    result: z.strictObject({ dropped: z.boolean(), left: LeftBehind.nullable() }),
    deadline: 120_000,
  }),
} as const;
