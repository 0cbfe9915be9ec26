import type { HostFailure } from '../../shared/protocol/host-failures.ts';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Result } from '../../shared/result.ts';

/** How a call of a host ended. */
export type CallOutcome<M extends Method> = Result<MethodResult<M>, HostFailure>;

/** The Durable Object that holds the link of one host; named by the host's ID. */
export interface HostLinkRpc extends Rpc.DurableObjectBranded {
  /** Whether an agent is linked and the host accepts work. */
  linked(): Promise<boolean>;
  /** Sends one operation to the agent. @param traceparent of the request that caused the call */
  call(method: Method, params: Params<Method>, traceparent?: string): Promise<CallOutcome<Method>>;
  /** Lets the records decide what is dropped on the host, although they may have been restored from a backup. */
  acceptRecords(): Promise<void>;
}
