import { AsyncLocalStorage } from 'node:async_hooks';
import { TRACEPARENT, traceIdOf } from '../shared/protocol/trace.ts';

const NOT_SAMPLED = '00';
const TRACE_BYTES = 16;
const SPAN_BYTES = 8;

const current = new AsyncLocalStorage<string>();

/** Runs `work` as a part of the trace: its log lines and its calls of hosts name it. */
export const traced = <T>(traceparent: string | undefined, work: () => T): T =>
  traceparent === undefined ? work() : current.run(traceparent, work);

/** The `traceparent` for the calls of the present work; undefined outside of a trace. */
export const currentTraceparent = (): string | undefined => current.getStore();

export const currentTraceId = (): string | undefined => traceIdOf(current.getStore());

/**
 * This gateway's span of the client's trace, or of a new trace if the client has none (W3C Trace Context).
 */
export function continueTrace(given: string | undefined): string {
  const [, traceId = randomHex(TRACE_BYTES), , flags = NOT_SAMPLED] = TRACEPARENT.exec(given ?? '') ?? [];
  return `00-${traceId}-${randomHex(SPAN_BYTES)}-${flags}`;
}

const randomHex = (bytes: number): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (byte) =>
    byte.toString(16).padStart(2, '0'),
  ).join('');
