import type { Method, Params, Result } from '../../shared/protocol/operations.ts';
import { HostCallError } from '../jobs/job-failure.ts';
import type { CallHost } from '../jobs/saga.ts';
import type { Env } from '../settings.ts';

const linkOf = (env: Env, hostId: string) => env.HOST_LINK.get(env.HOST_LINK.idFromName(hostId));

/** Whether the host's agent is connected. */
export const isLinked = (env: Env, hostId: string): Promise<boolean> => linkOf(env, hostId).linked();

/** Calls operations of one host; what fails is thrown as `HostCallError`. */
export const hostCaller =
  (env: Env, hostId: string): CallHost =>
  async <M extends Method>(method: M, params: Params<M>): Promise<Result<M>> => {
    const answer = await linkOf(env, hostId).call(method, params);
    if (!answer.ok) throw new HostCallError(answer.failure.code, answer.failure.message);
    return answer.result as Result<M>;
  };
