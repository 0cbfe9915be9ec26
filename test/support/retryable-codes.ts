/** Codes of responses without a definite outcome, after which a client retries. */
export const RETRYABLE_CODES = [
  'DATABASE_NAME_HELD',
  'DATABASE_SERVER_UNAVAILABLE',
  'HOST_FULL',
  'HOST_TIMEOUT',
  'HOST_UNAVAILABLE',
  'IDEMPOTENCY_IN_FLIGHT',
  'KEYS_UNAVAILABLE',
  'PROOF_FAILED',
  'RULES_NOT_APPLIED',
];
