import type { ApiResponse } from '../../support/api.ts';

/** The host ends logins that take longer than two seconds while rules change (docs/decisions/access.md). */
export const SLOW_LOGIN_ENDED = 'slow login ended';

/** Documented refusals of a client that sends many requests, or branches a source in use. */
const DOCUMENTED_LIMITS = [
  '429 RATE_LIMITED',
  '429 BRANCH_LIMIT_REACHED',
  '409 SOURCE_BUSY',
  // Four row operations of a branch run, four wait, and the next is refused
  // (docs/decisions/table-browser.md).
  '503 HOST_BUSY',
  SLOW_LOGIN_ENDED,
];

/** The kind of a call: a read, a write, or the creation of a branch. */
export type Call = 'read' | 'write' | 'branch';

/** On the clock of `performance.now()`; the end is excluded. */
export type Span = [from: number, to: number];

interface RecordedCall {
  /** On the clock of `performance.now()`. */
  at: number;
  call: Call;
  /** Status, and the code of a failure; or what went wrong without a response. */
  kind: string;
  ms: number;
}

/** Records every call of the API and its outcome. */
export class CallLog {
  readonly #calls: RecordedCall[] = [];
  readonly #examples = new Map<string, string>();

  /**
   * @param what describes the request
   * @returns the kind of the response
   */
  recordResponse(call: Call, what: string, { status, body }: ApiResponse<unknown>, ms: number): string {
    const code = (body as { error?: string } | null)?.error;
    const kind = status < 400 ? String(status) : `${status} ${code}`;
    this.#calls.push({ at: performance.now(), call, kind, ms });
    if (isError(kind)) this.#recordExample(kind, `${what}: ${JSON.stringify(body)}`);
    return kind;
  }

  /** Records a missing or undocumented response, or one whose promise was not kept. */
  recordFailure(call: Call, kind: string, reason: string): void {
    this.#calls.push({ at: performance.now(), call, kind, ms: 0 });
    if (isError(kind)) this.#recordExample(kind, reason);
  }

  /** @returns the number of calls of each kind in each span */
  countsIn(spans: Span[]): Record<string, number[]> {
    const kinds = [...new Set(this.#calls.map(({ kind }) => kind))].toSorted();
    return Object.fromEntries(
      kinds.map((kind) => [kind, spans.map((span) => this.#in(span, (call) => call.kind === kind).length)]),
    );
  }

  /** Milliseconds of the calls that succeeded. */
  times(call: Call, span: Span): number[] {
    return this.#in(span, (recorded) => recorded.call === call && DONE.test(recorded.kind)).map(
      ({ ms }) => ms,
    );
  }

  /** The number of calls that neither succeeded nor were refused by a documented limit. */
  get errors(): number {
    return this.#calls.filter(({ kind }) => isError(kind)).length;
  }

  /** The first error of each kind. */
  get examples(): string[] {
    return [...this.#examples].map(([kind, reason]) => `${kind}: ${reason}`);
  }

  #recordExample(kind: string, reason: string): void {
    if (!this.#examples.has(kind)) this.#examples.set(kind, reason);
  }

  #in([from, to]: Span, matches: (recorded: RecordedCall) => boolean): RecordedCall[] {
    return this.#calls.filter((recorded) => recorded.at >= from && recorded.at < to && matches(recorded));
  }
}

const DONE = /^[23]\d\d$/;
/** Whether it is neither success nor a documented limit. */
export const isError = (kind: string) => !DONE.test(kind) && !DOCUMENTED_LIMITS.includes(kind);
