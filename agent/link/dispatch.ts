import type { Bounds } from '../../shared/protocol/bounds.ts';
import {
  ERROR_MESSAGE_LENGTH,
  type ReplyFrame,
  type RequestFrame,
  RPC_ERRORS,
} from '../../shared/protocol/frames.ts';
import type { HostFailure } from '../../shared/protocol/host-failures.ts';
import { laneOf, type Method, OPERATIONS, type Params } from '../../shared/protocol/operations.ts';
import { traceIdOf } from '../../shared/protocol/trace.ts';
import { HostError } from '../process/host-error.ts';

/** Runs one operation with parsed parameters. */
export type Handle = <M extends Method>(method: M, params: Params<M>) => Promise<unknown>;
export type Log = (event: string, fields?: Record<string, unknown>) => void;

interface Run {
  /** The call's parameters, to distinguish a repetition from another call about the same subject. */
  parameters: string;
  result: Promise<unknown>;
}

interface Ended {
  method: Method;
  /** `ok`, or the code of the failure. */
  outcome: string;
  traceId: string | undefined;
  durationMs: number;
}

/** An operation that runs next to others of its branch is logged only if it takes this long. Milliseconds. */
const SLOW_MS = 1_000;

/** A call's subject; the subject of an operation without any of these fields is the host. */
const SUBJECT_FIELDS = ['job_id', 'project_id', 'branch_id', 'snapshot_id'] as const;

/**
 * Runs the operations that the edge calls. It outlives single links: a call that is repeated after a timeout
 * or a broken link joins the run that is still in progress.
 */
export class Dispatcher {
  readonly #handle: Handle;
  readonly #log: Log;
  readonly #bounds: Bounds;
  readonly #runs = new Map<string, Run>();
  /** Calls without a reply, by lane. */
  readonly #unanswered = { sql: 0, others: 0 };

  constructor(options: { handle: Handle; log: Log; bounds: Bounds }) {
    this.#handle = options.handle;
    this.#log = options.log;
    this.#bounds = options.bounds;
  }

  /** Runs one call. Never throws: every failure becomes an error frame. */
  async dispatch({ id, method, params, traceparent }: RequestFrame): Promise<ReplyFrame> {
    if (!isMethod(method))
      return errorFrame(id, { code: 'INVALID_CALL', message: 'no such method' }, 'methodNotFound');
    const lane = laneOf(method);
    if (this.#unanswered[lane] >= this.#bounds.callsInFlight) {
      return errorFrame(id, { code: 'HOST_BUSY', message: 'too many concurrent calls' });
    }
    const reading = OPERATIONS[method].params.safeParse(params);
    if (!reading.success) {
      // Names the fields but not their values, which may be secret.
      const fields = reading.error.issues.map(({ path }) => path.join('.')).join(', ');
      return errorFrame(
        id,
        { code: 'INVALID_CALL', message: `invalid parameters: ${fields}` },
        'invalidParams',
      );
    }
    this.#unanswered[lane] += 1;
    const traceId = traceIdOf(traceparent);
    const started = performance.now();
    let outcome = 'ok';
    try {
      const result = OPERATIONS[method].result.parse(await this.#run(method, reading.data));
      return { jsonrpc: '2.0', id, result };
    } catch (error) {
      const failure = this.#failureOf(method, error, traceId);
      outcome = failure.code;
      return errorFrame(id, failure);
    } finally {
      this.#unanswered[lane] -= 1;
      this.#logEnd({ method, outcome, traceId, durationMs: performance.now() - started });
    }
  }

  /**
   * Joins an identical run. A different call about the same subject waits until the run ends. Concurrent
   * operations (`concurrent`) do neither.
   */
  #run(method: Method, params: Params<Method>): Promise<unknown> {
    if (OPERATIONS[method].concurrent) return this.#handle(method, params);
    // The branches of a batch are prepared in several calls, side by side.
    const branches = 'branches' in params ? params.branches.map(({ branch_id }) => branch_id) : [];
    const fields = SUBJECT_FIELDS.map((field) => Reflect.get(params, field));
    const subject = JSON.stringify([method, ...fields, ...branches]);
    const parameters = JSON.stringify(params);
    const running = this.#runs.get(subject);
    if (running?.parameters === parameters) return running.result;
    const turn = running ? running.result.catch(() => {}) : Promise.resolve();
    const run = { parameters, result: turn.then(() => this.#handle(method, params)) };
    this.#runs.set(subject, run);
    const forget = () => this.#runs.get(subject) === run && this.#runs.delete(subject);
    run.result.then(forget, forget);
    return run.result;
  }

  #logEnd({ method, outcome, traceId, durationMs }: Ended): void {
    if (OPERATIONS[method].concurrent && durationMs < SLOW_MS) return;
    this.#log('operation.ended', {
      method,
      outcome,
      duration_ms: Math.round(durationMs),
      ...(traceId && { trace_id: traceId }),
    });
  }

  /** A HostError is sent to the edge; the reason of any other error goes to this host's log only. */
  #failureOf(method: Method, error: unknown, traceId: string | undefined): HostFailure {
    if (error instanceof HostError) return error;
    this.#log('operation.failed', {
      method,
      ...(traceId && { trace_id: traceId }),
      reason: error instanceof Error ? (error.stack ?? error.message) : String(error),
    });
    return { code: 'INTERNAL', message: `${method} failed; the reason is in the agent's log` };
  }
}

export const errorFrame = (
  id: string,
  { code, message, sqlstate, change, statement, path }: HostFailure,
  kind: keyof typeof RPC_ERRORS = 'operationFailed',
): ReplyFrame => ({
  jsonrpc: '2.0',
  id,
  error: {
    code: RPC_ERRORS[kind],
    message: message.slice(0, ERROR_MESSAGE_LENGTH),
    data: {
      code,
      ...(sqlstate !== undefined && { sqlstate }),
      ...(change !== undefined && { change }),
      ...(statement !== undefined && { statement }),
      ...(path !== undefined && { path }),
    },
  },
});

const isMethod = (name: string): name is Method => Object.hasOwn(OPERATIONS, name);
