import { DrizzleQueryError } from 'drizzle-orm';

/** The error without query values, safe to log: the message of a failed query contains them, such as e-mails. */
export const withoutValues = (error: Error): Error =>
  error instanceof DrizzleQueryError ? (error.cause ?? new Error('a query failed')) : error;
