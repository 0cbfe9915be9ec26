import { afterAll, beforeAll, expect, test } from 'vitest';
import { Api, type ApiResponse, forgedAddress } from '../../support/api.ts';
import { startTripsGateway, type TripsGateway, tallyOf } from '../../support/worker/trips-gateway.ts';
import { PLATFORM_SECRET } from '../../support/worker/worker.ts';

const LIMIT = 5;

let gateway: TripsGateway;

beforeAll(async () => {
  gateway = await startTripsGateway(0, { LIMIT_PUBLIC_PER_MINUTE: String(LIMIT) });
});
afterAll(() => gateway?.stop());

const HOSTS = '/platform/v1/hosts';
const from = (address: string) => ({ headers: { 'CF-Connecting-IP': address } });
const statusOf = ({ status }: ApiResponse) => status;

async function guess(secret: string, path: string, address: string): Promise<number[]> {
  const statuses = [];
  for (let times = 0; times < LIMIT; times++)
    statuses.push(statusOf(await new Api(gateway.url, secret).get(path, from(address))));
  return statuses;
}

test('after too many wrong platform secrets, the right one gets the same response, for the rest of the minute', async () => {
  const there = '192.0.2.1';
  const wrong = `${PLATFORM_SECRET.slice(1)}x`;
  expect(await guess(wrong, HOSTS, there)).toEqual(Array(LIMIT).fill(401));
  // The right secret comes first: this isolate has seen no denial yet.
  const responses = [];
  for (const secret of [PLATFORM_SECRET, wrong, PLATFORM_SECRET])
    responses.push(await new Api(gateway.url, secret).get(HOSTS, from(there)));
  expect(responses.map(statusOf)).toEqual([429, 429, 429]);
  const headers = responses.map((response) => response.headers.get('x-ratelimit-limit'));
  expect(headers).toEqual(Array(3).fill(String(LIMIT)));
  const before = await gateway.platform.get(HOSTS, from('192.0.2.2'));
  expect(before.status).toBe(200);
});

test('guesses with forged addresses count against the address that they come from', async () => {
  const statuses = [];
  for (let times = 0; times <= LIMIT; times++) {
    const headers = { ...forgedAddress(`203.0.113.${times}`), 'CF-Connecting-IP': '192.0.2.7' };
    statuses.push((await new Api(gateway.url, 'wrong').get(HOSTS, { headers })).status);
  }
  expect(statuses).toEqual([...Array(LIMIT).fill(401), 429]);
});

test('a right secret over the limit changes nothing', async () => {
  const there = '192.0.2.3';
  const host = (name: string) => ({
    body: { name, db_host: 'db.example.com', direct_port: 5432, pooled_port: 6432 },
    ...from(there),
  });
  await guess('wrong', HOSTS, there);
  expect((await gateway.platform.call('POST', HOSTS, host('guessed'))).status).toBe(429);
  const { body } = await gateway.platform.get<{ hosts: { name: string }[] }>(HOSTS);
  expect(body.hosts.map(({ name }) => name)).not.toContain('guessed');
});

test('once a denial is known, no secret is compared and nothing is called', async () => {
  const there = '192.0.2.4';
  await guess('wrong', HOSTS, there);
  await gateway.platform.get(HOSTS, from(there));
  const response = await gateway.platform.get(HOSTS, from(there));
  expect(response.status).toBe(429);
  expect(tallyOf(response).trips).toEqual([]);
});

test('failed tokens of an address stop neither the platform nor a right token', async () => {
  const there = '192.0.2.5';
  expect(await guess('v4.public.AAAA', '/api/v1/projects', there)).toEqual(Array(LIMIT).fill(401));
  expect(statusOf(await new Api(gateway.url, 'v4.public.AAAA').get('/api/v1/projects', from(there)))).toBe(
    429,
  );
  expect(statusOf(await gateway.platform.get(HOSTS, from(there)))).toBe(200);
  expect(statusOf(await gateway.api.get('/api/v1/projects', from(there)))).toBe(200);
});

test('wrong platform secrets of an address do not stop a right token', async () => {
  const there = '192.0.2.6';
  await guess('wrong', HOSTS, there);
  expect(statusOf(await gateway.platform.get(HOSTS, from(there)))).toBe(429);
  expect(statusOf(await gateway.api.get('/api/v1/projects', from(there)))).toBe(200);
});
