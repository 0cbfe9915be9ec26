import { sleep } from './sleep.ts';

/**
 * Provides the access token of each request.
 * @param rejected the token that the gateway has just rejected, so that a new one is needed; otherwise null
 */
export type TokenSource = (rejected: string | null) => Promise<string | null> | string | null;

export interface SendOptions {
  token: TokenSource;
  /** Default: the global `fetch`. */
  fetch?: (request: Request) => Promise<Response>;
  /**
   * For how long a request is repeated that the gateway asks to repeat later. Default: 60; 0 for not at all.
   */
  retryForSeconds?: number;
}

const RETRY_FOR_SECONDS = 60;

/** The gateway has done nothing yet when it responds with one of them and a `Retry-After`. */
const RETRYABLE = new Set([429, 503]);

/** Milliseconds that the response asks to wait (RFC 9110, 10.2.3); null if waiting does not help. */
function retryAfterMs({ status, headers }: Response): number | null {
  const value = headers.get('Retry-After');
  if (!RETRYABLE.has(status) || value === null) return null;
  const ms = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return Number.isNaN(ms) ? null : Math.max(0, ms);
}

/** A `fetch` that adds the token, renews it once, and repeats a request as `Retry-After` says. */
export function sender({
  token,
  fetch = globalThis.fetch,
  retryForSeconds = RETRY_FOR_SECONDS,
}: SendOptions) {
  const attempt = async (request: Request, given: string | null) => {
    const copy = request.clone();
    if (given !== null) copy.headers.set('Authorization', `Bearer ${given}`);
    return { given, response: await fetch(copy) };
  };

  async function authorized(request: Request): Promise<Response> {
    if (request.headers.has('Authorization')) return fetch(request.clone());
    const { given, response } = await attempt(request, await token(null));
    if (response.status !== 401 || given === null) return response;
    const renewed = await token(given);
    if (renewed === null || renewed === given) return response;
    await response.body?.cancel();
    return (await attempt(request, renewed)).response;
  }

  return async (request: Request): Promise<Response> => {
    let leftMs = retryForSeconds * 1000;
    while (true) {
      const response = await authorized(request);
      const waitMs = retryAfterMs(response);
      if (waitMs === null || waitMs > leftMs) return response;
      // At least a second, so that `Retry-After: 0` never becomes a busy loop.
      const pauseMs = Math.max(1000, waitMs);
      leftMs -= pauseMs;
      await response.body?.cancel();
      await sleep(pauseMs, request.signal);
    }
  };
}
