import { FAILURES, type Failure, type FailureCode } from '../shared/failures.ts';
import { fail, ok, type Result } from '../shared/result.ts';
import { firstRow } from './database/database.ts';

/** Thrown by routes and the pipeline, which renders it as the error envelope. */
export class ApiError extends Error {
  readonly failure: Failure;

  /**
   * @param fields members that join the error envelope, for instance `limit` or `details`
   * @param reason the internal cause, for the log only
   */
  constructor(code: FailureCode, fields?: Record<string, unknown>, reason?: string) {
    super(reason ?? FAILURES[code].message);
    this.name = 'ApiError';
    this.failure = fields ? { code, fields } : { code };
  }

  /** The failure with its internal cause. */
  get reasoned(): Failure {
    return { ...this.failure, reason: this.message };
  }

  static of({ code, fields, reason }: Failure): ApiError {
    return new ApiError(code, fields, reason);
  }
}

/** The value of a result. @throws ApiError with its failure */
export function unwrap<T>(result: Result<T, Failure>): T {
  if (!result.ok) throw ApiError.of(result.failure);
  return result.value;
}

/** The outcome of a call that throws an `ApiError` for what it refuses, for a route that changes the failure. */
export async function settled<T>(work: Promise<T>): Promise<Result<T, Failure>> {
  try {
    return ok(await work);
  } catch (error) {
    if (error instanceof ApiError) return fail(error.reasoned);
    throw error;
  }
}

/**
 * The first row.
 * @param failure of an operation whose path does not end with what was not found
 * @throws ApiError NOT_FOUND
 */
export const found = <R>(rows: readonly R[], failure?: Failure): R => unwrap(firstRow(rows, failure));
