import type { SchemaDifference } from '../../../shared/protocol/difference-operations.ts';

/** Marks the `workerData` of the thread that compares schemas. */
export const COMPARISON = 'schema-comparison';

/** Runs a query in the snapshot of one side, with the values of `pg`'s default types. */
export type CatalogQuery = (text: string, values?: unknown[]) => Promise<{ rows: Record<string, unknown>[] }>;

export type SideName = 'before' | 'after';

/** What the thread does with one side, or with both. */
export interface Task {
  kind: typeof COMPARISON;
  /** Where the schema `before` comes from: a session, or what an earlier reading stored. Null: `after` is only read. */
  before: 'session' | { stored: string } | null;
}

export interface Outcome {
  /** Null if a schema was only read. */
  difference: SchemaDifference | null;
  /** The schema that was only read. */
  stored: string | null;
}

/** From the thread: a query that it needs, or the end. */
export type FromThread =
  | { query: number; side: SideName; text: string; values: unknown[] | undefined }
  | { outcome: Outcome };

/** To the thread: the rows of a query. A failed query ends the thread. */
export interface ToThread {
  query: number;
  rows: Record<string, unknown>[];
}
