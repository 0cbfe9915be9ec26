import { setTimeout as sleep } from 'node:timers/promises';
import type { Api } from '../../support/api.ts';
import { type Call, type CallLog, isError } from './call-log.ts';

interface RequestOptions {
  method: string;
  path: string;
  /** Default: a GET is a read, any other method a write. */
  call?: Call;
  body?: unknown;
  headers?: Record<string, string>;
}

/** Pauses, at most until `ending`. */
export const pause = (ms: number, ending: AbortSignal): Promise<void> =>
  sleep(ms, undefined, { signal: ending }).catch(() => {});

/** A client of the API that respects its limits: it retries after `Retry-After`, not before. */
export class Client {
  readonly #api: Api;
  readonly log: CallLog;
  readonly ending: AbortSignal;

  constructor(api: Api, log: CallLog, ending: AbortSignal) {
    this.#api = api;
    this.log = log;
    this.ending = ending;
  }

  /** @returns the body of a success; null after a failure or at the end */
  async request<B>({
    method,
    path,
    call = method === 'GET' ? 'read' : 'write',
    ...more
  }: RequestOptions): Promise<B | null> {
    while (!this.ending.aborted) {
      const started = performance.now();
      try {
        const response = await this.#api.call<B>(method, path, more);
        const kind = this.log.recordResponse(
          call,
          `${method} ${path}`,
          response,
          performance.now() - started,
        );
        if (response.status < 400) return response.body;
        const retryAfter = response.headers.get('Retry-After');
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
