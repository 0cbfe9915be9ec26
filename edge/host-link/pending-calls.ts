import type { Bounds } from '../../shared/protocol/bounds.ts';
import type { ReplyFrame, RequestFrame } from '../../shared/protocol/frames.ts';
import type { HostFailure, HostFailureCode } from '../../shared/protocol/host-failures.ts';
import { fitsMessage } from '../../shared/protocol/messages.ts';
import { type Method, OPERATIONS, type Params } from '../../shared/protocol/operations.ts';
import type { Clock, Transport } from '../../shared/protocol/transport.ts';
import { fail, ok } from '../../shared/result.ts';
import type { CallOutcome } from '../hosts/host-link-rpc.ts';

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

interface PendingCall {
  method: Method;
  /** The link that carried the call; replies on other links are ignored. */
  epoch: number;
  end: (outcome: CallOutcome<Method>) => void;
}

interface PendingCallsOptions {
  clock: Clock;
  bounds: Bounds;
  /** Ends the calls of silent links; called once per heartbeat interval while calls are pending. */
  dropSilentLinks: () => void;
}

/** Calls to the host without a reply yet. Each ends with its reply, at its deadline, or when its link is lost. */
export class PendingCalls {
  readonly #options: PendingCallsOptions;
  readonly #calls = new Map<string, PendingCall>();

  constructor(options: PendingCallsOptions) {
    this.#options = options;
  }

  make<M extends Method>(
    link: Transport,
    epoch: number,
    { method, params, traceparent }: Call<M>,
  ): Promise<CallOutcome<Method>> | CallOutcome<Method> {
    const { bounds } = this.#options;
    if (this.#calls.size >= bounds.callsInFlight) {
      return failed('HOST_BUSY', `${bounds.callsInFlight} calls to this host are pending`);
    }
    const id = crypto.randomUUID();
    const frame: RequestFrame = {
      jsonrpc: '2.0',
      id,
      method,
      params,
      ...(traceparent !== undefined && { traceparent }),
    };
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
    this.#calls.set(id, { method, epoch, end });
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
    if (call?.epoch !== epoch) return;
    call.end(outcomeOf(call.method, reply));
  }

  /** Ends all calls of a lost link. */
  abandon(epoch: number): void {
    for (const call of [...this.#calls.values()].filter((pending) => pending.epoch === epoch)) {
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

function outcomeOf(method: Method, reply: ReplyFrame): CallOutcome<Method> {
  if ('error' in reply) {
    const { message, data } = reply.error;
    const { code, ...details } = data;
    return failed(code, message, details);
  }
  const reading = OPERATIONS[method].result.safeParse(reply.result);
  return reading.success
    ? ok(reading.data)
    : failed('INTERNAL', `the host's reply to ${method} has the wrong form`);
}
