import { FAILURES, type Failure, type FailureCode } from '../shared/failures.ts';
import type { Result } from '../shared/result.ts';
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

  static of({ code, fields, reason }: Failure): ApiError {
    return new ApiError(code, fields, reason);
  }
}

/** The value of a result. @throws ApiError with its failure */
export function unwrap<T>(result: Result<T, Failure>): T {
  if (!result.ok) throw ApiError.of(result.failure);
  return result.value;
}

/** The first row. @throws ApiError NOT_FOUND */
export const found = <R>(rows: readonly R[]): R => unwrap(firstRow(rows));
