import { sleep } from '../../client/sleep.ts';
import { createStore } from './store.ts';

/**
 * Until when the gateway refuses to be read, in Unix milliseconds. All pages wait, because they share one
 * limit.
 */
export const refusedUntil = createStore(0);

const isStream = ({ headers }: Request) => headers.get('Accept') === 'text/event-stream';

/** How long a response asks to wait. A proxy may send a date instead of seconds. */
export const waitMsOf = ({ headers }: Response): number => (Number(headers.get('Retry-After')) || 1) * 1000;

/**
 * Other limits have the same status, for instance that of the rows which a project reads at the same time.
 */
async function isRateLimited(response: Response): Promise<boolean> {
  if (response.status !== 429) return false;
  const body: unknown = await response
    .clone()
    .json()
    .catch(() => null);
  return typeof body === 'object' && body !== null && 'error' in body && body.error === 'RATE_LIMITED';
}

export async function noteRefusal(request: Request, response: Response): Promise<void> {
  // The limit of streams is another one, and what changes something reports to the person who did it.
  if (request.method !== 'GET' || isStream(request) || !(await isRateLimited(response))) return;
  refusedUntil.set(Math.max(refusedUntil.get(), Date.now() + waitMsOf(response)));
}

/** @throws the reason of the request's signal as soon as it is aborted */
export async function untilAllowed({ method, signal }: Request): Promise<void> {
  if (method !== 'GET') return;
  const leftMs = () => refusedUntil.get() - Date.now();
  // Another request may be refused meanwhile.
  while (leftMs() > 0) await sleep(leftMs(), signal);
}
