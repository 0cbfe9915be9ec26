import type { Method, Params, Result } from '../../shared/protocol/operations.ts';
import { HostCallError } from '../jobs/job-failure.ts';
import type { CallHost } from '../jobs/saga.ts';
import type { Env } from '../settings.ts';
import { callHost, hostLink } from './call-host.ts';

/** Whether the host's agent is connected. */
export const isLinked = (env: Env, hostId: string): Promise<boolean> => hostLink(env, hostId).linked();

/** Calls operations of one host; what fails is thrown as `HostCallError`. */
export const hostCaller =
  (env: Env, hostId: string): CallHost =>
  async <M extends Method>(method: M, params: Params<M>): Promise<Result<M>> => {
    const outcome = await callHost(env, hostId, method, params);
    if (!outcome.ok) throw new HostCallError(outcome.failure.code, outcome.failure.message);
    return outcome.result;
  };
