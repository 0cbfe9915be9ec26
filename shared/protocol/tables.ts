import { z } from 'zod';

/** Kinds of relations with readable rows. */
const TABLE_KINDS = ['table', 'partitioned_table', 'view', 'materialized_view', 'foreign_table'] as const;

export const Column = z.strictObject({
  name: z.string(),
  /** As PostgreSQL formats it; a tenant's own type with its schema. */
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
