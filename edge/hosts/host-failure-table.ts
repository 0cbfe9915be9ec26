import type { Failure, FailureCode } from '../../shared/failures.ts';
import type { HostFailure, HostFailureCode } from '../../shared/protocol/host-failures.ts';

interface PublicFailure {
  code: FailureCode;
  /**
   * Envelope members that quote the host's message. Only calls that carry a client's own values have such failures,
   * and the message can quote a tenant's data, so it is not logged.
   */
  fields?: (failure: HostFailure) => Record<string, unknown>;
}

/** Fields of requests that have another name as a parameter of the call. */
const FIELDS = new Map([
  ['order', 'sort'],
  ['after', 'cursor'],
]);

const fieldOf = (path: string) => path.replace(/^\w+/, (name) => FIELDS.get(name) ?? name);

/** @param unnamed the field if the host names none, as agents of the previous version do */
const invalid = (unnamed: string): PublicFailure => ({
  code: 'VALIDATION_FAILED',
  fields: ({ message, path = unnamed }) => ({ details: [{ path: fieldOf(path), message }] }),
});

/** How the API reports each failure of a host. */
const PUBLIC_FAILURES: Record<HostFailureCode, PublicFailure> = {
  SOURCE_BUSY: { code: 'SOURCE_BUSY' },
  SOURCE_MISSING: { code: 'SOURCE_NOT_ACTIVE' },
  TABLE_NOT_FOUND: { code: 'NOT_FOUND' },
  ROW_NOT_FOUND: { code: 'ROW_NOT_FOUND' },
  ROW_CHANGED: { code: 'ROW_CHANGED' },
  COLUMN_NOT_FOUND: invalid('column'),
  KEY_NOT_UNIQUE: invalid('primary_key'),
  INVALID_CALL: invalid(''),
  STATEMENT_REFUSED: {
    code: 'STATEMENT_REFUSED',
    fields: ({ sqlstate, message, change }) => ({
      sqlstate,
      message,
      ...(change !== undefined && { change }),
    }),
  },
  TIME_LIMIT_REACHED: { code: 'TIME_LIMIT_REACHED' },
  DATABASE_NAME_HELD: { code: 'DATABASE_NAME_HELD' },
  PROOF_FAILED: { code: 'PROOF_FAILED' },
  POSTGRES_UNAVAILABLE: { code: 'DATABASE_SERVER_UNAVAILABLE' },
  POOLER_UNAVAILABLE: { code: 'DATABASE_SERVER_UNAVAILABLE' },
  RULES_NOT_APPLIED: { code: 'RULES_NOT_APPLIED' },
  HOST_BUSY: { code: 'HOST_BUSY' },
  PROJECT_BUSY: { code: 'PROJECT_BUSY' },
  HOST_FULL: { code: 'HOST_FULL' },
  INTERNAL: { code: 'INTERNAL' },
  HOST_UNAVAILABLE: { code: 'HOST_UNAVAILABLE' },
  HOST_UPGRADE_REQUIRED: { code: 'HOST_UPGRADE_REQUIRED' },
  HOST_TIMEOUT: { code: 'HOST_TIMEOUT' },
};

/** The failure of a call that carries values of the client's request. */
export function failureOfRequest(failure: HostFailure, method: string): Failure {
  const { code, fields } = PUBLIC_FAILURES[failure.code];
  return fields ? { code, fields: fields(failure) } : { code, reason: `${method}: ${failure.message}` };
}

/** The failure of a call that the gateway made up itself: an invalid value in it is a defect of the gateway. */
export function failureOfOwnCall({
  code: hostCode,
  message,
}: Pick<HostFailure, 'code' | 'message'>): Failure {
  const { code, fields } = PUBLIC_FAILURES[hostCode];
  return { code: fields ? 'INTERNAL' : code, reason: `${hostCode}: ${message}` };
}
