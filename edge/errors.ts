import { FAILURES, type Failure, type FailureCode } from '../shared/failures.ts';

/** Thrown anywhere below a route; the pipeline renders it as the error envelope. */
export class ApiError extends Error {
  readonly failure: Failure;

  /**
   * @param fields fields of that error which join the envelope (`limit`, `details` …)
   * @param reason what really happened, for the log alone
   */
  constructor(code: FailureCode, fields?: Record<string, unknown>, reason?: string) {
    super(reason ?? FAILURES[code].message);
    this.name = 'ApiError';
    this.failure = fields ? { code, fields } : { code };
  }

  static of({ code, fields }: Failure): ApiError {
    return new ApiError(code, fields);
  }
}
