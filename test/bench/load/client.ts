import { setTimeout as sleep } from 'node:timers/promises';
import type { Api } from '../../support/api.ts';
import { type Call, type CallLog, isError } from './call-log.ts';

interface Asked {
  method: string;
  path: string;
  /** Left out: a GET is a read, anything else a write. */
  call?: Call;
  body?: unknown;
  headers?: Record<string, string>;
}

/** Rests, at most until `ending`. */
export const pause = (ms: number, ending: AbortSignal): Promise<void> =>
  sleep(ms, undefined, { signal: ending }).catch(() => {});

/** One who uses the API and keeps to its limits: who is told `Retry-After` asks again then, and not before. */
export class Client {
  readonly #api: Api;
  readonly log: CallLog;
  readonly ending: AbortSignal;

  constructor(api: Api, log: CallLog, ending: AbortSignal) {
    this.#api = api;
    this.log = log;
    this.ending = ending;
  }

  /** @returns the body of what succeeded; null when it did not, or when the end came first */
  async request<B>({
    method,
    path,
    call = method === 'GET' ? 'read' : 'write',
    ...more
  }: Asked): Promise<B | null> {
    while (!this.ending.aborted) {
      const started = performance.now();
      try {
        const answer = await this.#api.call<B>(method, path, more);
        const kind = this.log.recordResponse(call, `${method} ${path}`, answer, performance.now() - started);
        if (answer.status < 400) return answer.body;
        const retryAfter = answer.headers.get('Retry-After');
        if (isError(kind) || retryAfter === null) return null;
        await pause(1000 * Number(retryAfter), this.ending);
      } catch (error) {
        this.log.recordFailure(
          call,
          (error as Error).name,
          `${method} ${path}: ${(error as Error).cause ?? error}`,
        );
        return null;
      }
    }
    return null;
  }

  get<B>(path: string): Promise<B | null> {
    return this.request<B>({ method: 'GET', path });
  }
}
