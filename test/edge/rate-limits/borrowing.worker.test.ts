import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Bucket, bucketOf } from '../../../edge/rate-limits/buckets.ts';
import { eventually } from '../../support/eventually.ts';
import { type Isolates, startIsolates } from '../../support/worker/isolates.ts';

const ISOLATES = 4;
const LIMIT = 1000;
/** 3 % of the limit. */
const LENT_MAX = 30;

let isolates: Isolates;

beforeAll(async () => {
  isolates = await startIsolates(ISOLATES);
});
afterAll(() => isolates?.stop());

/** Reads of a project that no other test knows. */
const newReads = (): Bucket =>
  bucketOf.tenant('acme', { method: 'GET', path: `/api/v1/projects/${crypto.randomUUID()}` });

const inAll = <T>(action: (isolate: number) => Promise<T>) =>
  Promise.all(Array.from({ length: ISOLATES }, (_, isolate) => action(isolate)));

const admitted = (decisions: readonly { admitted: boolean }[]) =>
  decisions.filter((decision) => decision.admitted).length;

describe('of 1,200 concurrent reads in four isolates', () => {
  // Isolates that have borrowed before hold shares when the crowd arrives.
  test.each([
    ['that have borrowed nothing', 0],
    ['that have borrowed before', 20],
  ])('%s, never more than 1,000 are admitted, and at least 970', async (_, before) => {
    const reads = newReads();
    const earlier = await inAll((isolate) => isolates.takes(isolate, reads, before, 'in_turn'));
    const crowds = await inAll((isolate) => isolates.takes(isolate, reads, 300, 'at_once'));
    const count = admitted([...earlier, ...crowds].flat());
    expect(count).toBeLessThanOrEqual(LIMIT);
    expect(count).toBeGreaterThanOrEqual(LIMIT - LENT_MAX);
  });
});

test('one isolate alone gets exactly the limit, and each request its own remaining count', async () => {
  const reads = newReads();
  const decisions = [
    ...(await isolates.takes(0, reads, 200, 'in_turn')),
    ...(await isolates.takes(0, reads, 1000, 'in_turn')),
  ];
  const passed = decisions.filter((decision) => decision.admitted);
  expect(passed.map(({ remaining }) => remaining)).toEqual(
    Array.from({ length: LIMIT }, (_, n) => LIMIT - 1 - n),
  );
  expect(new Set(decisions.map(({ limit, resetAt }) => `${limit} ${resetAt}`)).size).toBe(1);
});

test('a busy client needs one call for five requests at most, and a slow one its own count', async () => {
  const reads = newReads();
  await isolates.takes(0, reads, 1, 'in_turn');
  expect((await isolates.inspect(reads)).calls).toBe(1);
  await isolates.takes(0, reads, 199, 'in_turn');
  expect((await isolates.inspect(reads)).calls).toBeLessThanOrEqual(40);
});

test('what an isolate does not use is returned', async () => {
  const reads = newReads();
  await isolates.takes(1, reads, 60, 'in_turn');
  await eventually(async () => {
    expect((await isolates.inspect(reads)).windows).toMatchObject({ reads: { count: 60 } });
  });
  expect(await isolates.takes(2, reads, 1, 'in_turn')).toMatchObject([{ remaining: LIMIT - 61 }]);
});

test('limits of guesses are exact in all isolates together', async () => {
  const failed = bucketOf.failedAuthentication('2001:db8::1');
  const crowds = await inAll((isolate) => isolates.takes(isolate, failed, 30, 'at_once'));
  expect(admitted(crowds.flat())).toBe(60);
});
