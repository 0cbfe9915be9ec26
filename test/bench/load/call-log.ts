import type { ApiResponse } from '../../support/api.ts';

/** docs/decisions/0020: the host ends logins that take longer than two seconds when somebody's rules change. */
export const SLOW_LOGIN_ENDED = 'slow login ended';

/** What the documentation says can happen to a client who asks a lot, or asks for a source in use. */
const DOCUMENTED_LIMITS = [
  '429 RATE_LIMITED',
  '429 BRANCH_LIMIT_REACHED',
  '409 SOURCE_BUSY',
  // 0021: four row operations of a branch run, four wait, and the next is refused.
  '503 HOST_BUSY',
  SLOW_LOGIN_ENDED,
];

/** What the calls of one kind are: a read, a write, or the creation of a branch. */
export type Call = 'read' | 'write' | 'branch';

/** On the clock of `performance.now()`; without its end. */
export type Span = [from: number, to: number];

interface Noted {
  /** On the clock of `performance.now()`. */
  at: number;
  call: Call;
  /** Status, and of a failure its code; or what went wrong without an answer. */
  kind: string;
  ms: number;
}

/** Everything that was asked of the API, and how it went. */
export class CallLog {
  readonly #calls: Noted[] = [];
  readonly #examples = new Map<string, string>();

  /**
   * @param what was asked, in words
   * @returns the kind of the answer
   */
  recordResponse(call: Call, what: string, { status, body }: ApiResponse<unknown>, ms: number): string {
    const code = (body as { error?: string } | null)?.error;
    const kind = status < 400 ? String(status) : `${status} ${code}`;
    this.#calls.push({ at: performance.now(), call, kind, ms });
    if (isError(kind)) this.#keep(kind, `${what}: ${JSON.stringify(body)}`);
    return kind;
  }

  /** There was no answer, it was not as described, or what it promised did not come. */
  recordFailure(call: Call, kind: string, reason: string): void {
    this.#calls.push({ at: performance.now(), call, kind, ms: 0 });
    if (isError(kind)) this.#keep(kind, reason);
  }

  /** How many of each kind there were in each span of `[from, to)`. */
  countsIn(spans: Span[]): Record<string, number[]> {
    const kinds = [...new Set(this.#calls.map(({ kind }) => kind))].toSorted();
    return Object.fromEntries(
      kinds.map((kind) => [kind, spans.map((span) => this.#in(span, (call) => call.kind === kind).length)]),
    );
  }

  /** Milliseconds of the calls that succeeded. */
  times(call: Call, span: Span): number[] {
    return this.#in(span, (noted) => noted.call === call && DONE.test(noted.kind)).map(({ ms }) => ms);
  }

  /** How many were neither done nor refused by a documented limit. */
  get errors(): number {
    return this.#calls.filter(({ kind }) => isError(kind)).length;
  }

  /** The first of each kind, in words. */
  get examples(): string[] {
    return [...this.#examples].map(([kind, reason]) => `${kind}: ${reason}`);
  }

  #keep(kind: string, reason: string): void {
    if (!this.#examples.has(kind)) this.#examples.set(kind, reason);
  }

  #in([from, to]: Span, isMeant: (noted: Noted) => boolean): Noted[] {
    return this.#calls.filter((noted) => noted.at >= from && noted.at < to && isMeant(noted));
  }
}

const DONE = /^[23]\d\d$/;
/** Whether it is neither success nor a documented limit. */
export const isError = (kind: string) => !DONE.test(kind) && !DOCUMENTED_LIMITS.includes(kind);
