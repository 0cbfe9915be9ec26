import type { Failure } from '../../shared/failures.ts';
import type { HostFailureCode } from '../../shared/protocol/host-failures.ts';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import { fail, type Result } from '../../shared/result.ts';
import type { Env } from '../env.ts';
import { repeatIfLost } from '../lost-object.ts';
import { currentTraceparent } from '../trace.ts';
import { failureOfRequest } from './host-failure-table.ts';
import type { CallOutcome } from './host-link-rpc.ts';

/** A call of a database host that failed. */
export class HostCallError extends Error {
  readonly code: HostFailureCode;

  constructor(code: HostFailureCode, message: string) {
    super(message);
    this.name = 'HostCallError';
    this.code = code;
  }
}

/** Calls an operation of one host. @throws HostCallError */
export type CallHost = <M extends Method>(method: M, params: Params<M>) => Promise<MethodResult<M>>;

/** The object that holds the link of the host. */
export const hostLink = (env: Env, hostId: string) => env.HOST_LINK.get(env.HOST_LINK.idFromName(hostId));

/** Whether the host's agent is connected. */
export const isLinked = (env: Env, hostId: string): Promise<boolean> =>
  repeatIfLost(() => hostLink(env, hostId).linked()).catch(() => false);

/** Never throws and always ends: the object's loss is a failure as well. */
async function send<M extends Method>(
  env: Env,
  hostId: string,
  method: M,
  params: Params<M>,
): Promise<CallOutcome<M>> {
  try {
    return (await hostLink(env, hostId).call(method, params, currentTraceparent())) as CallOutcome<M>;
  } catch {
    return fail({ code: 'HOST_UNAVAILABLE', message: `the object of the link was lost during ${method}` });
  }
}

/** Calls operations of a host for the gateway itself. */
export const hostCaller =
  (env: Env, hostId: string): CallHost =>
  async (method, params) => {
    const outcome = await send(env, hostId, method, params);
    if (!outcome.ok) throw new HostCallError(outcome.failure.code, outcome.failure.message);
    return outcome.value;
  };

/** Calls an operation of a host with the values of a client's request, which gets the result or the failure. */
export async function callHostForClient<M extends Method>(
  env: Env,
  hostId: string,
  method: M,
  params: Params<M>,
): Promise<Result<MethodResult<M>, Failure>> {
  const outcome = await send(env, hostId, method, params);
  return outcome.ok ? outcome : fail(failureOfRequest(outcome.failure, method));
}
