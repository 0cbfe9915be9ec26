/**
 * Version of the schemas of the link. Edge and agent must use the same one, so raise it with any change of a schema;
 * `test/shared/protocol/version.test.ts` fails until that is done.
 */
export const PROTOCOL_VERSION = 5;
