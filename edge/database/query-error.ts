import { DrizzleQueryError } from 'drizzle-orm';

/** The message of a `DrizzleQueryError`, whose class is lost when it comes from an object. */
const QUERY_FAILURE = /^(?:\w*Error: )?Failed query: /;

/** The error without query values, safe to log: the message of a failed query contains them, such as e-mails. */
export function withoutValues(error: Error): Error {
  if (error instanceof DrizzleQueryError) return error.cause ?? new Error('a query failed');
  return QUERY_FAILURE.test(error.message) ? new Error('a query of an object failed') : error;
}
