import { z } from 'zod';
import { BRANCH_ROLES } from '../branch/login.ts';
import { FILTERS_MAX, ORDERS_MAX, QUERY_PARAMETERS_MAX, QUERY_STATEMENTS_MAX, ROWS_MAX } from '../limits.ts';
import { Database, Id, operation } from './operation.ts';
import {
  Cell,
  Column,
  RowChange,
  RowFilter,
  RowOrder,
  RowOutcome,
  Scalar,
  Table,
  TableDetails,
} from './tables.ts';

const BranchDatabase = { branch_id: Id, database: Database };
/** Schema and name of a table, as in the catalog. */
const TableIdentity = { schema: z.string(), table: z.string() };

/** SQLSTATE of a query that is for an empty database only. PostgreSQL has no class of that name. */
export const NOT_EMPTY = 'BG001';

/** One for each statement. */
export const QueryResults = z
  .array(
    z.strictObject({
      columns: z.array(z.strictObject({ name: z.string(), type: z.string() })),
      /** One cell per column. */
      rows: z.array(z.array(Cell)),
      /** The statement returned more rows than fit into the message. */
      has_more: z.boolean(),
      /** The command tag without its count; null for an empty statement, and one that was ended early. */
      command: z.string().nullable(),
      /** Rows that it returned or changed; null when it was ended early, or has no such count. */
      row_count: z.int().nonnegative().nullable(),
    }),
  )
  .min(1)
  .max(QUERY_STATEMENTS_MAX);

/** The operations in a branch's database, for clients that browse, change and query it. */
export const ROW_OPERATIONS = {
  'table.list': operation({
    summary: 'List the tables and views that the read-write login may read, as many as fit into a message',
    params: z.strictObject({
      ...BranchDatabase,
      /** `null`: every schema except the system's. */
      schema: z.string().nullable(),
      /** The last table of the previous part; `null`: from the beginning. */
      after: z.strictObject({ schema: z.string(), name: z.string() }).nullable(),
    }),
    result: z.strictObject({ tables: z.array(Table), has_more: z.boolean() }),
    deadline: 15_000,
    concurrent: true,
  }),

  'table.describe': operation({
    summary:
      'Describe a table: columns with defaults and enum values, keys, foreign keys, indexes and constraints',
    params: z.strictObject({ ...BranchDatabase, ...TableIdentity }),
    result: TableDetails,
    deadline: 15_000,
    concurrent: true,
  }),

  'row.list': operation({
    summary:
      'List a page of the rows that meet all conditions, by default in the order of the primary key, as many as fit into a message',
    params: z.strictObject({
      ...BranchDatabase,
      ...TableIdentity,
      limit: z.int().min(1).max(ROWS_MAX),
      offset: z.int().nonnegative(),
      filter: z.array(RowFilter).max(FILTERS_MAX),
      order: z.array(RowOrder).max(ORDERS_MAX),
    }),
    result: z.strictObject({
      columns: z.array(Column),
      /** One cell per column. */
      rows: z.array(z.array(Cell)).max(ROWS_MAX),
      has_more: z.boolean(),
      estimated_rows: z.int().nullable(),
    }),
    deadline: 15_000,
    concurrent: true,
  }),

  'row.change': operation({
    summary: 'Insert, update and delete rows as the read-write login, all in one transaction',
    params: z.strictObject({ ...BranchDatabase, changes: z.array(RowChange).min(1).max(ROWS_MAX) }),
    result: z.strictObject({
      tables: z.array(z.strictObject({ columns: z.array(z.string()), key: z.array(z.string()) })),
      /** One per change; with a conflict, nothing was changed, and only the conflicts are listed. */
      outcomes: z.array(RowOutcome.extend({ change: z.int().nonnegative() })),
    }),
    deadline: 15_000,
    concurrent: true,
  }),

  'query.run': operation({
    summary: 'Run statements of the client as the query login or one of the branch, in one transaction',
    params: z.strictObject({
      ...BranchDatabase,
      project_id: Id,
      role: z.enum(BRANCH_ROLES),
      /** Refuses a database with objects of its own, with the SQLSTATE `NOT_EMPTY`. */
      only_if_empty: z.boolean().optional(),
      sql: z.string(),
      /** Of a text with one statement. */
      params: z.array(Scalar.nullable()).max(QUERY_PARAMETERS_MAX),
    }),
    result: z.strictObject({ results: QueryResults }),
    deadline: 45_000,
    concurrent: true,
  }),
} as const;
