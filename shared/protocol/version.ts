/**
 * Version of everything that crosses the link. Edge and agent must agree on it, so raise it with any change
 * of a schema; `test/shared/protocol/version.test.ts` fails until that is done.
 */
export const PROTOCOL_VERSION = 3;
