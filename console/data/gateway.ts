import { createClient } from '../../client/client.ts';
import { ResponseError } from '../../client/response-error.ts';
import { sleep } from '../../client/sleep.ts';
import { noteRefusal, untilAllowed, waitMsOf } from './refusals.ts';
import { createStore } from './store.ts';

/** Whether the last request reached the gateway. */
export const reachable = createStore(true);

async function send(request: Request): Promise<Response> {
  await untilAllowed(request);
  try {
    const response = await fetch(request);
    reachable.set(true);
    await noteRefusal(request, response);
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

/**
 * A token is renewed when this share of its life is left, but not earlier than that many seconds before its
 * end.
 */
const MARGIN = { share: 0.25, seconds: 20 };

function storeToken(value: string, expiresIn: number): void {
  token = {
    value,
    renewAt: Date.now() + (expiresIn - Math.min(MARGIN.seconds, expiresIn * MARGIN.share)) * 1000,
  };
}

export function forgetToken(): void {
  token = null;
}

/** Other tabs may be renewing the session at the same moment. */
const RENEWALS = 4;

/** Exchanges the cookie of the page for an access token. @returns null if nobody is signed in */
export async function renewToken(): Promise<string | null> {
  for (let attempt = 1; ; attempt += 1) {
    const response = await send(new Request('/api/v1/auth/session', { method: 'POST' }));
    if (response.status === 429 && attempt < RENEWALS) {
      await sleep(waitMsOf(response));
      continue;
    }
    if (response.status === 429 || response.status >= 500)
      throw new ResponseError(response, await response.json());
    token = null;
    if (response.status !== 200) return null;
    const { access_token, expires_in } = (await response.json()) as {
      access_token: string;
      expires_in: number;
    };
    storeToken(access_token, expires_in);
    return access_token;
  }
}

/** Requests that need a token at the same time share one renewal. */
function currentToken(rejected: string | null): Promise<string | null> | string | null {
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
