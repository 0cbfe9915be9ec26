import type { HostFailureCode } from '../../shared/protocol/host-failures.ts';
import type { Method, Params, Result } from '../../shared/protocol/operations.ts';
import type { Env } from '../env.ts';
import { callHost, hostLink } from './call-host.ts';

/** A call to a database host that did not succeed. */
export class HostCallError extends Error {
  readonly code: HostFailureCode;

  constructor(code: HostFailureCode, message: string) {
    super(message);
    this.name = 'HostCallError';
    this.code = code;
  }
}

/** Asks one host for an operation. @throws HostCallError */
export type CallHost = <M extends Method>(method: M, params: Params<M>) => Promise<Result<M>>;

/** Whether the host's agent is connected. */
export const isLinked = (env: Env, hostId: string): Promise<boolean> =>
  hostLink(env, hostId)
    .linked()
    .catch(() => false);

export const hostCaller =
  (env: Env, hostId: string): CallHost =>
  async <M extends Method>(method: M, params: Params<M>): Promise<Result<M>> => {
    const outcome = await callHost(env, hostId, method, params);
    if (!outcome.ok) throw new HostCallError(outcome.failure.code, outcome.failure.message);
    return outcome.result;
  };
