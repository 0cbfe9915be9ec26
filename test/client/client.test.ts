import { describe, expect, test, vi } from 'vitest';
import { type BranchgateClient, type ClientOptions, createClient } from '../../client/client.ts';
import { dataOf, JobError, ResponseError } from '../../client/response-error.ts';

type Reply = (request: Request) => Response | Promise<Response>;

/**
 * A client whose gateway gives these responses, the last one again and again, and the requests that it got.
 */
function clientOf(replies: Reply[], options: Partial<ClientOptions> = {}) {
  const requests: Request[] = [];
  const fetch = async (request: Request) => {
    requests.push(request);
    const reply = replies[Math.min(requests.length, replies.length) - 1];
    return reply ? reply(request) : Response.error();
  };
  const client: BranchgateClient = createClient({
    url: 'https://gateway.example/',
    token: 'abc',
    fetch,
    ...options,
  });
  return { client, requests };
}

const json =
  (body: unknown, status = 200, headers: Record<string, string> = {}): Reply =>
  () =>
    Response.json(body, { status, headers });

const refused = (status: number, error: string, headers = {}) =>
  json({ error, message: `It is ${error}.`, request_id: 'r1' }, status, headers);

const JOB = { id: '7d1b0c2e-6a53-4d3c-9d2c-0c1f0f6f1a11', status: 'running', error: null };
const PROJECTS = '/api/v1/projects';

test('a request has the token and the address of the gateway', async () => {
  const { client, requests } = clientOf([json({ projects: [], next_cursor: null })]);
  await dataOf(client.api.GET(PROJECTS));
  expect(requests[0]?.url).toBe('https://gateway.example/api/v1/projects');
  expect(requests[0]?.headers.get('Authorization')).toBe('Bearer abc');
});

test('a failure has the code, the message and the fields of the API', async () => {
  const { client } = clientOf([refused(404, 'NOT_FOUND')]);
  const failed = dataOf(client.api.GET(PROJECTS));
  await expect(failed).rejects.toBeInstanceOf(ResponseError);
  await expect(failed).rejects.toMatchObject({ status: 404, code: 'NOT_FOUND', requestId: 'r1' });
});

test('a response of something else than the API is a failure without a code', async () => {
  const { client } = clientOf([() => new Response('<h1>Bad gateway</h1>', { status: 502 })]);
  await expect(dataOf(client.api.GET(PROJECTS))).rejects.toMatchObject({ status: 502, code: null });
});

describe('a rejected token', () => {
  const REJECTED = refused(401, 'UNAUTHENTICATED');

  test('is renewed once', async () => {
    const token = vi.fn((rejected: string | null) => (rejected === 'old' ? 'new' : 'old'));
    const { client, requests } = clientOf([REJECTED, json({ projects: [], next_cursor: null })], { token });
    await dataOf(client.api.GET(PROJECTS));
    expect(requests.map(({ headers }) => headers.get('Authorization'))).toEqual(['Bearer old', 'Bearer new']);
  });

  test('is an error when it cannot be renewed', async () => {
    const { client, requests } = clientOf([REJECTED]);
    await expect(dataOf(client.api.GET(PROJECTS))).rejects.toMatchObject({ code: 'UNAUTHENTICATED' });
    expect(requests).toHaveLength(1);
  });
});

describe('a request that the gateway asks to repeat', () => {
  test.each([
    ['429 with seconds', refused(429, 'RATE_LIMITED', { 'Retry-After': '2' })],
    [
      '503 with a date',
      refused(503, 'HOST_BUSY', { 'Retry-After': new Date(Date.now() + 2000).toUTCString() }),
    ],
  ])('is repeated after that time, with the same body and the same key: %s', async (_, busy) => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    try {
      const { client, requests } = clientOf([busy, busy, json({ id: 'p' }, 201)]);
      const created = dataOf(client.api.POST(PROJECTS, { body: { name: 'Shop' } }));
      await vi.waitFor(() => expect(requests).toHaveLength(1));
      await vi.advanceTimersByTimeAsync(500);
      expect(requests).toHaveLength(1);
      await vi.advanceTimersByTimeAsync(10_000);
      expect(await created).toMatchObject({ id: 'p' });
      expect(requests).toHaveLength(3);
      const keys = new Set(requests.map(({ headers }) => headers.get('Idempotency-Key')));
      expect([...keys]).toEqual([expect.stringMatching(/^[0-9a-f-]{36}$/)]);
      for (const request of requests) expect(await request.json()).toEqual({ name: 'Shop' });
    } finally {
      vi.useRealTimers();
    }
  });

  test.each([
    ['without Retry-After, because waiting does not help', refused(429, 'BRANCH_LIMIT_REACHED')],
    ['that takes longer than the client waits', refused(429, 'RATE_LIMITED', { 'Retry-After': '61' })],
    ['with another status', refused(504, 'HOST_TIMEOUT', { 'Retry-After': '1' })],
  ])('is not repeated %s', async (_, refusal) => {
    const { client, requests } = clientOf([refusal]);
    await expect(dataOf(client.api.GET(PROJECTS))).rejects.toBeInstanceOf(ResponseError);
    expect(requests).toHaveLength(1);
  });
});

describe('a creation', () => {
  const path = '/api/v1/projects/{project_id}/branches';
  const init = { params: { path: { project_id: 'p' } }, body: { branch_name: 'pr-1' } };

  test('that takes long is waited for, and has the response of its first request', async () => {
    const { client, requests } = clientOf([
      json(JOB, 202),
      json(JOB),
      json({ ...JOB, status: 'succeeded' }),
      json({ id: 'b', branch_name: 'pr-1' }, 201),
    ]);
    const seen: string[] = [];
    const branch = await client.create(path, init, { onProgress: ({ status }) => seen.push(status) });
    expect(branch).toMatchObject({ branch_name: 'pr-1' });
    expect(seen).toEqual(['running', 'succeeded']);
    expect(requests.map(({ method }) => method)).toEqual(['POST', 'GET', 'GET', 'POST']);
    const [first, , , last] = requests.map(({ headers }) => headers.get('Idempotency-Key'));
    expect(first).toBe(last);
  });

  test('that fails is an error with the code of its job', async () => {
    const error = { code: 'SOURCE_BUSY', message: 'The source is busy.' };
    const { client } = clientOf([json(JOB, 202), json({ ...JOB, status: 'failed', error })]);
    await expect(client.create(path, init)).rejects.toEqual(new JobError({ id: JOB.id, error }));
  });

  test('is abandoned with its signal', async () => {
    const { client } = clientOf([json(JOB)]);
    const wait = client.waitForJob(JOB.id, { signal: AbortSignal.timeout(20) });
    await expect(wait).rejects.toMatchObject({ name: 'TimeoutError' });
  });
});

test('a list has the records of all pages', async () => {
  const { client, requests } = clientOf([
    json({ projects: [{ id: '1' }, { id: '2' }], next_cursor: 'c' }),
    json({ projects: [{ id: '3' }], next_cursor: null }),
  ]);
  const ids: string[] = [];
  for await (const { id } of client.all(PROJECTS, { params: { query: { limit: 2 } } })) ids.push(id);
  expect(ids).toEqual(['1', '2', '3']);
  expect(requests.map(({ url }) => new URL(url).search)).toEqual(['?limit=2', '?limit=2&cursor=c']);
});

describe('a stream of events', () => {
  const stream =
    (text: string): Reply =>
    () =>
      new Response(text, { headers: { 'Content-Type': 'text/event-stream' } });

  test('continues after the last event when the connection ends', async () => {
    const { client, requests } = clientOf([
      stream('retry: 1\n\nid: 7\nevent: branch.changed\ndata: {"n":1}\n\n: here\n\nid: 8\ndata: {"n":2}\n\n'),
      () => Promise.reject(new TypeError('fetch failed')),
      stream('id: 9\nevent: reset\ndata: {"n":3}\n\n'),
    ]);
    const stop = new AbortController();
    const seen: unknown[] = [];
    const options = { lastEventId: '6', signal: stop.signal, onCut: () => void seen.push('cut') };
    for await (const event of client.events('p', options)) {
      seen.push(event);
      if (seen.length === 4) stop.abort();
    }
    expect(seen).toEqual([
      { id: '7', type: 'branch.changed', data: { n: 1 } },
      { id: '8', type: 'message', data: { n: 2 } },
      'cut',
      { id: '9', type: 'reset', data: { n: 3 } },
      'cut',
    ]);
    expect(requests.map(({ headers }) => headers.get('Last-Event-ID'))).toEqual(['6', '8', '8']);
  });

  test('ends with an error when the gateway refuses it', async () => {
    const { client } = clientOf([refused(404, 'NOT_FOUND')]);
    await expect(client.events('p').next()).rejects.toMatchObject({ code: 'NOT_FOUND' });
  });
});
