/**
 * Every failure a client of the API can be told: HTTP status and public message.
 * The reason inside goes to the log under the request id; it is never part of the answer.
 */
export const FAILURES = {
  BAD_REQUEST: { status: 400, message: 'The request body is not valid JSON.' },
  UNAUTHENTICATED: { status: 401, message: 'A valid bearer token is required.' },
  SIGN_IN_FAILED: { status: 400, message: 'The sign-in was not completed. Start it again.' },
  CREDENTIALS_WRONG: { status: 401, message: 'The e-mail address or the password is wrong.' },
  CODE_WRONG: { status: 401, message: 'The code is wrong, used up or too old.' },
  REFRESH_TOKEN_WRONG: {
    status: 401,
    message: 'The refresh token is wrong, used up or too old. Sign in again.',
  },
  SECOND_FACTOR_REQUIRED: { status: 403, message: 'The second factor can not be passed over.' },
  SECOND_FACTOR_ENROLLED: { status: 403, message: 'A second factor is enrolled already.' },
  FORBIDDEN: { status: 403, message: 'Your role or scope does not allow this.' },
  TENANT_REQUIRED: { status: 403, message: 'The token names no tenant (ctx.tenant_id).' },
  BRANCH_PROTECTED: { status: 403, message: 'The branch is protected.' },
  NOT_FOUND: { status: 404, message: 'There is no such thing.' },
  ROW_NOT_FOUND: { status: 404, message: 'There is no such row.' },
  BRANCH_EXISTS: { status: 409, message: 'The project already has a branch of that name.' },
  PROJECT_EXISTS: { status: 409, message: 'A project with that app key and environment already exists.' },
  PROJECT_NOT_ACTIVE: { status: 409, message: 'The project is not active.' },
  RULE_EXISTS: { status: 409, message: 'That network rule already exists.' },
  HOST_EXISTS: { status: 409, message: 'A host of that name is enrolled already.' },
  SOURCE_BUSY: {
    status: 409,
    message:
      'A session of the source branch stayed in a transaction for too long. Try again when it has ended.',
  },
  SOURCE_NOT_ACTIVE: { status: 409, message: 'The source branch is not active.' },
  BRANCH_NOT_ACTIVE: { status: 409, message: 'The branch is not active.' },
  WRITE_BLOCKED: {
    status: 409,
    message: 'The project has used up its storage quota: only owner logins may write.',
  },
  ROW_CHANGED: { status: 409, message: 'The cell holds another value than expected.' },
  STORAGE_QUOTA_EXCEEDED: { status: 409, message: 'The storage quota of the project would be exceeded.' },
  IDEMPOTENCY_IN_FLIGHT: {
    status: 409,
    message: 'The first request with this Idempotency-Key is still running.',
  },
  PAYLOAD_TOO_LARGE: { status: 413, message: 'The request body is over 1 MiB.' },
  VALIDATION_FAILED: { status: 422, message: 'The request has invalid values.' },
  /** Told in PostgreSQL's own words, beside their `sqlstate`. */
  STATEMENT_REFUSED: { status: 422, message: 'PostgreSQL refused it.' },
  DATABASE_NAME_TOO_LONG: {
    status: 422,
    message: 'The derived database name would be longer than 63 characters.',
  },
  QUOTA_ABOVE_SELF_SERVICE_CAP: {
    status: 422,
    message: 'The storage quota is above the cap of the project. Ask the platform to raise it.',
  },
  IDEMPOTENCY_KEY_REUSED: {
    status: 422,
    message: 'This Idempotency-Key was used with another request body.',
  },
  UPGRADE_REQUIRED: { status: 426, message: 'This path speaks WebSocket only.' },
  BRANCH_LIMIT_REACHED: { status: 429, message: 'The project has as many branches as it may have.' },
  RULE_LIMIT_REACHED: { status: 429, message: 'The project has as many network rules as it may have.' },
  STREAM_LIMIT_REACHED: { status: 429, message: 'The project has as many open streams as it may have.' },
  RATE_LIMITED: { status: 429, message: 'Too many requests. Try again after retry_after seconds.' },
  INTERNAL: { status: 500, message: 'Something went wrong on our side. The request id tells us what.' },
  LIMITER_UNAVAILABLE: { status: 503, message: "The gateway can't count requests at the moment." },
  IDP_UNAVAILABLE: { status: 503, message: "The identity provider can't be reached at the moment." },
  MAIL_UNAVAILABLE: { status: 503, message: 'This gateway is not set up to send mail.' },
  HOST_BUSY: {
    status: 503,
    message: 'The database host has too much of this to do at the moment. Try again.',
  },
  HOST_UNAVAILABLE: { status: 503, message: 'The database host is not connected at the moment.' },
  KEYS_UNAVAILABLE: { status: 503, message: "The identity provider's keys can't be had at the moment." },
  HOST_TIMEOUT: { status: 504, message: 'The database host did not answer in time.' },
} as const satisfies Record<string, { status: number; message: string }>;

export type FailureCode = keyof typeof FAILURES;

/**
 * A failure as it travels between the objects of the edge: its code, and the fields of that error
 * (`limit`, `details` …) that join the envelope. Plain data, because classes do not survive an RPC.
 */
export interface Failure {
  code: FailureCode;
  fields?: Record<string, unknown>;
}
