import type { SchemaDifference } from './schema-record.ts';

/** `workerData` of the thread that compares schemas. */
export const COMPARISON = 'schema-comparison';

export type Side = 'here' | 'there';

/** From the thread: a query that it needs, or the end. */
export type FromThread =
  | { query: number; side: Side; text: string; values: unknown[] | undefined }
  | { difference: SchemaDifference };

/** To the thread: the rows of a query. A failed query ends the thread. */
export interface ToThread {
  query: number;
  rows: Record<string, unknown>[];
}
