/** Codes of answers that decide nothing, so that a client has to ask again. */
export const RETRYABLE_CODES = [
  'IDEMPOTENCY_IN_FLIGHT',
  'HOST_UNAVAILABLE',
  'HOST_TIMEOUT',
  'KEYS_UNAVAILABLE',
];
