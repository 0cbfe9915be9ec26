import type { Method, Params } from '../../shared/protocol/operations.ts';
import type { Env } from '../env.ts';
import { type CallOutcome, failed } from '../host-link/pending-calls.ts';

/** The object that holds the link of that host. */
export const hostLink = (env: Env, hostId: string) => env.HOST_LINK.get(env.HOST_LINK.idFromName(hostId));

/** Asks a host's agent for an operation. Never throws and never hangs: whatever goes wrong is a failure by code. */
export async function callHost<M extends Method>(
  env: Env,
  hostId: string,
  method: M,
  params: Params<M>,
): Promise<CallOutcome<M>> {
  try {
    return (await hostLink(env, hostId).call(method, params)) as CallOutcome<M>;
  } catch {
    return failed('HOST_UNAVAILABLE', `the object that holds the link broke off during ${method}`);
  }
}
