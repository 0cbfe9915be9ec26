import { z } from 'zod';

/** Kinds of relations that rows can be read of. */
const TABLE_KINDS = ['table', 'partitioned_table', 'view', 'materialized_view', 'foreign_table'] as const;

export const Column = z.strictObject({
  name: z.string(),
  /** As PostgreSQL writes it; a tenant's own type with its schema. */
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
  /** PostgreSQL's own estimate; null before the table's first `ANALYZE` and for what has none. */
  estimated_rows: z.int().nullable(),
  /** With indexes; null while another session has the table for itself. */
  size_bytes: z.int().nullable(),
});
export type Table = z.output<typeof Table>;

/** A lone half of a surrogate pair would reach PostgreSQL as another character. */
const Text = z.string().refine((text) => text.isWellFormed(), 'not well-formed Unicode');

/** A value as clients write it: numbers and booleans as such, everything else as PostgreSQL's text. */
export const Scalar = z.union([Text, z.number(), z.boolean()]);
export type Scalar = z.output<typeof Scalar>;

/** A value as clients read it; `cut` is the beginning of one that is too long. */
export const Cell = z.union([Scalar, z.null(), z.strictObject({ cut: z.string() })]);
export type Cell = z.output<typeof Cell>;

/** Values of the key's columns, in the order in which the key was named. */
export const RowId = z.array(Scalar).min(1).max(32);
export type RowId = z.output<typeof RowId>;
