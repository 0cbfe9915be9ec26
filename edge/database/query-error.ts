import { DrizzleQueryError } from 'drizzle-orm';

/** The error as it may be logged or told: the text of a failed query has its values in it, people's addresses too. */
export const withoutValues = (error: Error): Error =>
  error instanceof DrizzleQueryError ? (error.cause ?? new Error('a query failed')) : error;
