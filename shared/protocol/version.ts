/**
 * Version of the schemas of the link. Raise it with the first change of a schema after a release;
 * `test/shared/protocol/version.test.ts` fails until that is done.
 */
export const PROTOCOL_VERSION = 6;

/**
 * Version of the last release, which the edge accepts too (`edge/host-link/previous-version.ts`): agents are
 * upgraded after the gateway. A release sets it to the released version.
 */
export const PREVIOUS_VERSION = 5;
