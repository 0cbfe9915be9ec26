import type { FailureCode } from '../../shared/failures.ts';
import type { HostFailure, HostFailureCode } from '../../shared/protocol/host-failures.ts';
import type { Method, Params, Result } from '../../shared/protocol/operations.ts';
import type { Env } from '../env.ts';
import { ApiError } from '../errors.ts';
import { callHost } from './call-host.ts';
import type { CallHost } from './host-client.ts';

interface Told {
  code: FailureCode;
  /** What of the host's words joins the envelope. They can quote a tenant's data, so they are never logged. */
  fields?: (failure: HostFailure) => Record<string, unknown>;
}

const invalid = (path: string): Told => ({
  code: 'VALIDATION_FAILED',
  fields: ({ message }) => ({ details: [{ path, message }] }),
});

/** What a client is told of a call that its request waited for; of any other failure `HOST_UNAVAILABLE`. */
const TOLD_TO_CLIENTS: Partial<Record<HostFailureCode, Told>> = {
  TABLE_NOT_FOUND: { code: 'NOT_FOUND' },
  ROW_NOT_FOUND: { code: 'ROW_NOT_FOUND' },
  ROW_CHANGED: { code: 'ROW_CHANGED' },
  KEY_NOT_UNIQUE: invalid('primary_key'),
  INVALID_CALL: invalid(''),
  STATEMENT_REFUSED: {
    code: 'STATEMENT_REFUSED',
    fields: ({ sqlstate, message }) => ({ sqlstate, message }),
  },
  HOST_BUSY: { code: 'HOST_BUSY' },
  HOST_TIMEOUT: { code: 'HOST_TIMEOUT' },
  INTERNAL: { code: 'INTERNAL' },
};

/** Asks one host for what a request waits for. @throws ApiError in the words for clients */
export const askHost =
  (env: Env, hostId: string): CallHost =>
  async <M extends Method>(method: M, params: Params<M>): Promise<Result<M>> => {
    const outcome = await callHost(env, hostId, method, params);
    if (outcome.ok) return outcome.result;
    const { failure } = outcome;
    const told = TOLD_TO_CLIENTS[failure.code] ?? { code: 'HOST_UNAVAILABLE' as const };
    throw new ApiError(
      told.code,
      told.fields?.(failure),
      told.fields ? undefined : `${method}: ${failure.message}`,
    );
  };
