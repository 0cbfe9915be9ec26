import type { HostFailure } from '../../shared/protocol/host-failures.ts';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Result } from '../../shared/result.ts';

/** How a call of a host ended. */
export type CallOutcome<M extends Method> = Result<MethodResult<M>, HostFailure>;

/** The Durable Object that holds the link of one host; named by the host's ID. */
export interface HostLinkRpc extends Rpc.DurableObjectBranded {
  /** Whether an agent is linked and the host accepts work. */
  linked(): Promise<boolean>;
  /** Sends one operation to the agent. */
  call(method: Method, params: Params<Method>): Promise<CallOutcome<Method>>;
}
