import type { Bounds } from '../../shared/protocol/bounds.ts';
import type { ReplyFrame, RequestFrame } from '../../shared/protocol/frames.ts';
import type { HostFailure, HostFailureCode } from '../../shared/protocol/host-failures.ts';
import { fitsMessage } from '../../shared/protocol/messages.ts';
import { laneOf, type Method, OPERATIONS, type Params } from '../../shared/protocol/operations.ts';
import type { Clock, Transport } from '../../shared/protocol/transport.ts';
import { PREVIOUS_VERSION } from '../../shared/protocol/version.ts';
import { fail, ok } from '../../shared/result.ts';
import type { CallOutcome } from '../hosts/host-client.ts';
import { resultFromPreviousVersion, toPreviousVersion } from './previous-version.ts';

export const failed = (
  code: HostFailureCode,
  message: string,
  details: Omit<HostFailure, 'code' | 'message'> = {},
) => fail({ code, message, ...details });

/** A call of the host. */
interface Call<M extends Method> {
  method: M;
  params: Params<M>;
  traceparent?: string | undefined;
}

/** The link that carries a call. */
interface Carrier {
  epoch: number;
  /** The version that its agent speaks. */
  protocol: number;
}

interface PendingCall extends Pick<Call<Method>, 'method' | 'params'> {
  /** Replies on other links are ignored. */
  carrier: Carrier;
  end: (outcome: CallOutcome<Method>) => void;
}

interface PendingCallsOptions {
  clock: Clock;
  bounds: Bounds;
  /** Ends the calls of silent links; called once per heartbeat interval while calls are pending. */
  dropSilentLinks: () => void;
}

/**
 * Calls to the host without a reply yet. Each ends with its reply, at its deadline, or when its link is lost.
 */
export class PendingCalls {
  readonly #options: PendingCallsOptions;
  readonly #calls = new Map<string, PendingCall>();

  constructor(options: PendingCallsOptions) {
    this.#options = options;
  }

  make<M extends Method>(
    link: Transport,
    carrier: Carrier,
    call: Call<M>,
  ): Promise<CallOutcome<Method>> | CallOutcome<Method> {
    const { bounds } = this.#options;
    const { method } = call;
    const lane = laneOf(method);
    const inLane = [...this.#calls.values()].filter((pending) => laneOf(pending.method) === lane);
    if (inLane.length >= bounds.callsInFlight) {
      return failed('HOST_BUSY', `${bounds.callsInFlight} calls to this host are pending`);
    }
    const id = crypto.randomUUID();
    const params =
      carrier.protocol === PREVIOUS_VERSION ? toPreviousVersion(method, call.params) : call.params;
    if (params === null)
      return failed('HOST_UPGRADE_REQUIRED', `the agent speaks version ${PREVIOUS_VERSION}: no ${method}`);
    const frame: RequestFrame = { jsonrpc: '2.0', id, ...call, params };
    const text = JSON.stringify(frame);
    if (!fitsMessage(text, bounds))
      return failed('INVALID_CALL', `the call of ${method} exceeds the message size`);

    const { promise, resolve } = Promise.withResolvers<CallOutcome<Method>>();
    const stopWaiting = this.#endAtDeadline(id, method);
    const end = (outcome: CallOutcome<Method>) => {
      this.#calls.delete(id);
      stopWaiting();
      resolve(outcome);
    };
    this.#calls.set(id, { method, params: call.params, carrier, end });
    try {
      link.send(text);
    } catch {
      end(failed('HOST_UNAVAILABLE', `the link closed before ${method}`));
    }
    return promise;
  }

  /** Ends the call of this reply. A late reply, or one on another link than its call, is ignored. */
  settle(epoch: number, reply: ReplyFrame): void {
    const call = this.#calls.get(reply.id);
    if (call?.carrier.epoch !== epoch) return;
    call.end(outcomeOf(call, reply));
  }

  /** Ends all calls of a lost link. */
  abandon(epoch: number): void {
    for (const call of [...this.#calls.values()].filter(({ carrier }) => carrier.epoch === epoch)) {
      call.end(failed('HOST_UNAVAILABLE', `the link was lost during ${call.method}`));
    }
  }

  #endAtDeadline(id: string, method: Method): () => void {
    const { clock, bounds, dropSilentLinks } = this.#options;
    const deadline = clock.now() + OPERATIONS[method].deadline;
    let cancel: () => void;
    const wait = () => {
      const left = deadline - clock.now();
      cancel = clock.after(Math.min(left, bounds.heartbeat), () => {
        if (clock.now() >= deadline) {
          this.#calls.get(id)?.end(failed('HOST_TIMEOUT', `no reply to ${method} within its deadline`));
          return;
        }
        wait();
        dropSilentLinks();
      });
    };
    wait();
    return () => cancel();
  }
}

function outcomeOf({ method, params, carrier }: PendingCall, reply: ReplyFrame): CallOutcome<Method> {
  if ('error' in reply) {
    const { message, data } = reply.error;
    const { code, ...details } = data;
    return failed(code, message, details);
  }
  const isOlder = carrier.protocol === PREVIOUS_VERSION;
  const result = isOlder ? resultFromPreviousVersion(method, reply.result, params) : reply.result;
  const reading = OPERATIONS[method].result.safeParse(result);
  return reading.success
    ? ok(reading.data)
    : failed('INTERNAL', `the host's reply to ${method} has the wrong form`);
}
