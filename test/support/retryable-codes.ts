/** Codes of responses without a definite outcome, after which a client retries. */
export const RETRYABLE_CODES = [
  'IDEMPOTENCY_IN_FLIGHT',
  'HOST_UNAVAILABLE',
  'HOST_TIMEOUT',
  'KEYS_UNAVAILABLE',
];
