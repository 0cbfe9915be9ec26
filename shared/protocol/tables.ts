import { z } from 'zod';

/** Kinds of relations with readable rows. */
const TABLE_KINDS = ['table', 'partitioned_table', 'view', 'materialized_view', 'foreign_table'] as const;

export const Column = z.strictObject({
  name: z.string(),
  /** PostgreSQL's name of the type; a tenant's own type with its schema. */
  type: z.string(),
  nullable: z.boolean(),
  is_primary_key: z.boolean(),
});

export const Table = z.strictObject({
  schema: z.string(),
  name: z.string(),
  kind: z.enum(TABLE_KINDS),
  columns: z.array(Column),
  /** Columns in the key's order; empty when there is none. */
  primary_key: z.array(z.string()),
  /** PostgreSQL's estimate; null before the table's first `ANALYZE`, and for relations without one. */
  estimated_rows: z.int().nullable(),
  /** Including indexes; null while another session holds an exclusive lock on the table. */
  size_bytes: z.int().nullable(),
});
export type Table = z.output<typeof Table>;

/** How a column gets its value when a new row names none, or may name none. */
const ColumnDetails = Column.extend({
  /** SQL of the default or of the generated value. */
  default: z.string().nullable(),
  identity: z.enum(['always', 'by_default']).nullable(),
  generated: z.enum(['stored', 'virtual']).nullable(),
  /** Values of an enum type, or of a domain over one, in their order. */
  enum_values: z.array(z.string()).nullable(),
  comment: z.string().nullable(),
});

const ForeignKey = z.strictObject({
  name: z.string(),
  columns: z.array(z.string()),
  referenced_schema: z.string(),
  referenced_table: z.string(),
  referenced_columns: z.array(z.string()),
});

const Index = z.strictObject({
  name: z.string(),
  /** The statement that creates it. */
  definition: z.string(),
  unique: z.boolean(),
  primary: z.boolean(),
  /** False while it is built, and after its building failed: queries do not use it. */
  valid: z.boolean(),
});

/** Kinds of constraints by `pg_constraint.contype`. */
export const CONSTRAINT_KINDS = {
  p: 'primary_key',
  u: 'unique',
  c: 'check',
  f: 'foreign_key',
  x: 'exclusion',
  n: 'not_null',
} as const;

const Constraint = z.strictObject({
  name: z.string(),
  kind: z.enum(CONSTRAINT_KINDS),
  /** Definition as in `CREATE TABLE`, without the name. */
  definition: z.string(),
  /** False: rows that existed before it can violate it. */
  validated: z.boolean(),
});

export const TableDetails = Table.omit({ size_bytes: true }).extend({
  columns: z.array(ColumnDetails),
  /** Lists of columns that identify a row: the primary key first. Without one, rows cannot be changed. */
  keys: z.array(z.array(z.string())),
  foreign_keys: z.array(ForeignKey),
  /** By name. */
  indexes: z.array(Index),
  /** By name, except constraint triggers. */
  constraints: z.array(Constraint),
  comment: z.string().nullable(),
});

/** A lone surrogate would reach PostgreSQL as another character. */
const Text = z.string().refine((text) => text.isWellFormed(), 'not well-formed Unicode');

/** A value in a request: a number, a boolean, or PostgreSQL's text form of any other type. */
export const Scalar = z.union([Text, z.number(), z.boolean()]);
export type Scalar = z.output<typeof Scalar>;

/** A value in a response; `cut` is the beginning of one that is too long. */
export const Cell = z.union([Scalar, z.null(), z.strictObject({ cut: z.string() })]);
export type Cell = z.output<typeof Cell>;

/** Values of the key's columns, in the order of the requested key. */
export const RowId = z.array(Scalar).min(1).max(32);
export type RowId = z.output<typeof RowId>;

const OPERATORS = ['eq', 'ne', 'lt', 'le', 'gt', 'ge', 'contains', 'is_null', 'is_not_null'] as const;

/** A condition on rows. `contains` compares the value's text, ignoring case. */
export const RowFilter = z.strictObject({
  column: z.string(),
  operator: z.enum(OPERATORS),
  value: Scalar.optional(),
});
export type RowFilter = z.output<typeof RowFilter>;

export const RowOrder = z.strictObject({ column: z.string(), direction: z.enum(['asc', 'desc']) });
export type RowOrder = z.output<typeof RowOrder>;

const CellValue = z.strictObject({ column: z.string(), value: Scalar.nullable() });
const ofTable = { schema: z.string(), table: z.string() };
const ofRow = {
  ...ofTable,
  /** The columns of the primary key, or one unique column that is not null. */
  primary_key: z.array(z.string()).min(1).max(32),
  id: RowId,
};

/** One of several changes. `expected` are values that the row must currently have. */
export const RowChange = z.discriminatedUnion('action', [
  z.strictObject({ action: z.literal('insert'), ...ofTable, values: z.array(CellValue) }),
  z.strictObject({
    action: z.literal('update'),
    ...ofRow,
    values: z.array(CellValue).min(1),
    expected: z.array(CellValue),
  }),
  z.strictObject({
    action: z.literal('delete'),
    ...ofRow,
    expected: z.array(CellValue),
    /** False: without such a row, the change is skipped instead of a conflict, and returns no row. */
    must_exist: z.boolean(),
  }),
]);
export type RowChange = z.output<typeof RowChange>;

/** The outcome of a change. */
export const RowOutcome = z.strictObject({
  /** Index of its table. */
  table: z.int().nonnegative(),
  /** The row after its change; with a conflict, as it is. Null when it was deleted, or is missing. */
  row: z.array(Cell).nullable(),
  /** Why it was not changed: it has other values than expected, or does not exist. */
  conflict: z.enum(['changed', 'missing']).nullable(),
  /** The row was missing, which the change permits. */
  skipped: z.boolean(),
});
export type RowOutcome = z.output<typeof RowOutcome>;
