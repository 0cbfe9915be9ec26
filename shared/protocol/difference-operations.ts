import { z } from 'zod';
import { ROWS_MAX } from '../limits.ts';
import { Database, Id, operation } from './operation.ts';
import { Cell, Column } from './tables.ts';

/** How the rows that can differ were found, from the cheapest to the dearest. */
export const DIFFERENCE_METHODS = ['wal_summary', 'extents', 'full'] as const;
export type DifferenceMethod = (typeof DIFFERENCE_METHODS)[number];

const Method = z.enum(DIFFERENCE_METHODS);

/** Why the rows of a table were not compared. */
const NOT_COMPARED = ['not_readable', 'row_security', 'locked', 'refused'] as const;

const Count = z.int().nonnegative();

const TableDifference = z.strictObject({
  schema: z.string(),
  name: z.string(),
  /** Rows that only the branch has. */
  inserted: Count,
  updated: Count,
  /** Rows that only the other side has. */
  deleted: Count,
  method: Method,
});
export type TableDifference = z.output<typeof TableDifference>;

const NotCompared = z.strictObject({
  schema: z.string(),
  name: z.string(),
  reason: z.enum(NOT_COMPARED),
  /** PostgreSQL's message of a table that it refused to read. */
  detail: z.string().optional(),
});
export type NotCompared = z.output<typeof NotCompared>;

export const RowDifference = z.strictObject({
  /** Tables with a difference, by schema and name; a partition is a table of its own. */
  tables: z.array(TableDifference),
  /** There are more such tables than fit into a message. */
  has_more: z.boolean(),
  /** Tables that both sides have, or one of them. */
  compared: Count,
  not_compared: z.array(NotCompared),
});
export type RowDifference = z.output<typeof RowDifference>;

export const SchemaDifference = z.strictObject({
  changes: z.array(
    z.strictObject({
      /** Kind of the object: `table`, `column`, `index`, … */
      kind: z.string(),
      /** Names the object: `public.book`, `public.book.title`, … */
      identity: z.string(),
      /** What the branch has done, seen from the other side. */
      change: z.enum(['added', 'changed', 'dropped']),
      detail: z.string().optional(),
    }),
  ),
  /** They bring the other side to where the branch is, in this order. */
  statements: z.array(z.string()),
  /** Differences that no statement expresses, with the definitions of both sides. */
  not_modelled: z.array(z.string()),
  /** The statements were tried on a copy of the other side's schema without rows, and left no difference. */
  schema_proven: z.boolean(),
  /** Why not: something is left, or they were not tried. Null if they were proven. */
  unproven_reason: z.enum(['not_modelled', 'too_large', 'too_long', 'busy']).nullable(),
});
export type SchemaDifference = z.output<typeof SchemaDifference>;

/** What a branch is compared with. */
const Against = z.union([
  z.strictObject({ branch_id: Id, database: Database }),
  z.strictObject({ snapshot_id: Id }),
]);

const Sides = { project_id: Id, branch_id: Id, database: Database, against: Against };

/** A row that differs: without `before` it was inserted, without `after` it was deleted. */
const ChangedRow = z.strictObject({
  before: z.array(Cell).nullable(),
  after: z.array(Cell).nullable(),
});

/** The differences of two databases of a project, read as the read-only login of each. */
export const DIFFERENCE_OPERATIONS = {
  'branch.diff': operation({
    summary: 'Compare a branch with another one, or with a snapshot: rows of each table, schema',
    params: z.strictObject({
      ...Sides,
      /** The job that waits for the result; `null`: a client does. */
      job_id: Id.nullable(),
      rows: z.boolean(),
      schema: z.boolean(),
      /** Milliseconds after which the comparison is given up. */
      within: z.int().min(1_000).max(910_000),
    }),
    result: z.strictObject({
      /** False if it took longer; then nothing else is known. */
      complete: z.boolean(),
      /**
       * How the rows that can differ were found; single tables can need a dearer method. Null without rows.
       */
      method: Method.nullable(),
      rows: RowDifference.nullable(),
      schema: SchemaDifference.nullable(),
    }),
    deadline: 930_000,
    concurrent: true,
  }),

  'diff.cancel': operation({
    summary: 'End the comparison of a job, if one is under way',
    params: z.strictObject({ job_id: Id, project_id: Id }),
    result: z.strictObject({ stopped: z.boolean() }),
    deadline: 15_000,
    concurrent: true,
  }),

  'row.diff': operation({
    summary: 'List a page of the rows of a table that differ between a branch and another one, or a snapshot',
    params: z.strictObject({
      ...Sides,
      schema: z.string(),
      table: z.string(),
      limit: z.int().min(1).max(ROWS_MAX),
      /**
       * The key of the last row of the previous page, as that page returned it; `null`: from the beginning.
       */
      after: z.array(z.string()).min(1).max(32).nullable(),
    }),
    result: z.strictObject({
      method: Method,
      /** Columns of the key, by which rows are matched. */
      key: z.array(z.string()),
      /** Columns of the cells of `before`; empty if the other side has no such table. */
      columns_before: z.array(Column),
      columns_after: z.array(Column),
      rows: z.array(ChangedRow).max(ROWS_MAX),
      /** For the next page; null after the last row. */
      next: z.array(z.string()).nullable(),
    }),
    deadline: 120_000,
    concurrent: true,
  }),
} as const;
