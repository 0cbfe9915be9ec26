import { createClient } from '../../client/client.ts';
import { createStore } from './store.ts';

/** Whether the last request reached the gateway. */
export const reachable = createStore(true);

async function send(request: Request): Promise<Response> {
  try {
    const response = await fetch(request);
    reachable.set(true);
    return response;
  } catch (error) {
    if (!request.signal.aborted) reachable.set(false);
    throw error;
  }
}

/** The access token lives in this module only, never in a storage that outlives the page. */
let token: { value: string; renewAt: number } | null = null;
let renewal: Promise<string | null> | null = null;

/** Called when the gateway no longer knows the session of the page. */
let onEnd: () => void = () => {};
export const whenSessionEnds = (listener: () => void) => {
  onEnd = listener;
};

/** Seconds before its expiry at which a token is renewed. */
const MARGIN_SECONDS = 20;

export function storeToken(value: string, expiresIn: number): void {
  token = { value, renewAt: Date.now() + (expiresIn - MARGIN_SECONDS) * 1000 };
}

export function forgetToken(): void {
  token = null;
}

export const hasToken = () => token !== null;

/** Exchanges the cookie of the page for an access token. @returns null if nobody is signed in */
export async function renewToken(): Promise<string | null> {
  const response = await send(new Request('/api/v1/auth/session', { method: 'POST' }));
  if (response.status === 429 || response.status >= 500)
    throw new TypeError('the session cannot be renewed now');
  if (response.status !== 200) {
    token = null;
    return null;
  }
  const { access_token, expires_in } = (await response.json()) as {
    access_token: string;
    expires_in: number;
  };
  storeToken(access_token, expires_in);
  return access_token;
}

/** Requests that need a token at the same time share one renewal. */
export function currentToken(rejected: string | null): Promise<string | null> | string | null {
  if (token === null) return null;
  if (token.value !== rejected && Date.now() < token.renewAt) return token.value;
  renewal ??= renewToken()
    .then((renewed) => {
      if (renewed === null) onEnd();
      return renewed;
    })
    .finally(() => {
      renewal = null;
    });
  return renewal;
}

/** Queries repeat what fails, as the page can then say so; see `query-client.ts`. */
export const gateway = createClient({
  url: location.origin,
  token: currentToken,
  fetch: send,
  retryForSeconds: 0,
});
export const { api } = gateway;
