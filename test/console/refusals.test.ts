import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { noteRefusal, refusedUntil, untilAllowed } from '../../console/data/refusals.ts';

beforeEach(() => {
  vi.useFakeTimers();
  refusedUntil.set(0);
});
afterEach(() => {
  vi.useRealTimers();
});

const read = (init: RequestInit = {}) => new Request('https://gateway.test/api/v1/projects', init);
const refusal = (error: string, retryAfter = '5') =>
  Response.json({ error }, { status: 429, headers: { 'Retry-After': retryAfter } });
/** Seconds for which all pages wait after this response. */
const waitAfter = async (request: Request, response: Response) => {
  await noteRefusal(request, response);
  return Math.max(0, refusedUntil.get() - Date.now()) / 1000;
};

test.each<[string, Request, Response, number]>([
  ['the limit of requests', read(), refusal('RATE_LIMITED'), 5],
  ['a date in place of seconds', read(), refusal('RATE_LIMITED', 'Wed, 21 Oct 2026 07:28:00 GMT'), 1],
  ['a busy project', read(), refusal('PROJECT_BUSY'), 0],
  ['a proxy', read(), new Response('Too many', { status: 429, headers: { 'Retry-After': '5' } }), 0],
  ['a change', read({ method: 'POST' }), refusal('RATE_LIMITED'), 0],
  ['a stream', read({ headers: { Accept: 'text/event-stream' } }), refusal('RATE_LIMITED'), 0],
])('whether a refusal stops what all pages read: %s', async (_, request, response, seconds) => {
  expect(await waitAfter(request, response)).toBe(seconds);
  // The page reads the body too.
  expect(response.bodyUsed).toBe(false);
});

test('reads wait until the last refusal has ended, and changes do not wait', async () => {
  let isAllowed = false;
  await noteRefusal(read(), refusal('RATE_LIMITED'));
  const waiting = untilAllowed(read()).then(() => {
    isAllowed = true;
  });
  await untilAllowed(read({ method: 'POST' }));
  await vi.advanceTimersByTimeAsync(4_000);
  await noteRefusal(read(), refusal('RATE_LIMITED'));
  await vi.advanceTimersByTimeAsync(4_999);
  expect(isAllowed).toBe(false);
  await vi.advanceTimersByTimeAsync(1);
  await waiting;
  expect(isAllowed).toBe(true);
});

test('a read that is given up does not wait', async () => {
  const abort = new AbortController();
  await noteRefusal(read(), refusal('RATE_LIMITED'));
  const waiting = untilAllowed(read({ signal: abort.signal }));
  abort.abort(new Error('left'));
  await expect(waiting).rejects.toThrow('left');
});
