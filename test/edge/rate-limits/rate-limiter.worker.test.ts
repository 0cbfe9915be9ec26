import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { type Bucket, bucketOf } from '../../../edge/rate-limits/buckets.ts';
import { eventually } from '../../support/eventually.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { type RateLimitGateway, startRateLimitGateway } from '../../support/worker/rate-limit-gateway.ts';

const newStateDir = () => mkdtemp(join(tmpdir(), 'branchgate-rate-limits-'));

/** Two buckets of a project that no other test knows. */
function newProject(): { reads: Bucket; writes: Bucket } {
  const path = `/api/v1/projects/${crypto.randomUUID()}`;
  return {
    reads: bucketOf.tenant('acme', { method: 'GET', path }),
    writes: bucketOf.tenant('acme', { method: 'POST', path }),
  };
}

let addresses = 0;
/** Two buckets of an address that no other test knows. */
function newAddress() {
  addresses += 1;
  const address = `2001:db8:0:${addresses.toString(16)}::1`;
  return { public: bucketOf.public(address), failed: bucketOf.failedAuthentication(address) };
}

const admitted = (decisions: readonly { admitted: boolean }[]) =>
  decisions.filter((decision) => decision.admitted).length;

async function stored(gateway: RateLimitGateway, bucket: Bucket) {
  const { windows, rest, alarm } = await gateway.inspect(bucket);
  return { windows, rest, alarm };
}

/** A window that outlasts the tests, unless they advance the clock. */
const WINDOW_SECONDS = 3600;

describe('with windows of a minute', () => {
  let stateDir: string;
  let gateway: RateLimitGateway;

  beforeAll(async () => {
    stateDir = await newStateDir();
    gateway = await startRateLimitGateway({ stateDir, windowSeconds: 60 });
  });
  afterAll(async () => {
    await gateway.stop();
    await rm(stateDir, { recursive: true });
  });

  test('of 1,200 concurrent reads exactly 1,000 are admitted, each with its own remaining count', async () => {
    const { reads, writes } = newProject();
    const crowds = await Promise.all(Array.from({ length: 12 }, () => gateway.takes(reads, 100)));
    const decisions = crowds.flat();
    expect(admitted(decisions)).toBe(1000);
    const rests = decisions.filter((decision) => decision.admitted).map(({ remaining }) => remaining);
    expect(rests.sort((a, b) => b - a)).toEqual(Array.from({ length: 1000 }, (_, n) => 999 - n));
    const refused = decisions.filter((decision) => !decision.admitted);
    expect(new Set(refused.map(({ remaining }) => remaining))).toEqual(new Set([0]));
    expect(new Set(decisions.map(({ limit, resetAt }) => `${limit} ${resetAt}`)).size).toBe(1);
    const [writing] = await gateway.takes(writes);
    expect(writing).toMatchObject({ admitted: true, limit: 200, remaining: 199 });
    const [reading] = await gateway.takes(newProject().reads);
    expect(reading).toMatchObject({ admitted: true, limit: 1000, remaining: 999 });
  });

  test('a window ends a minute after its first request', async () => {
    const before = Date.now();
    const { reads } = newProject();
    const [first] = await gateway.takes(reads);
    const after = Date.now();
    expect(first?.resetAt).toBeGreaterThanOrEqual(Math.ceil(before / 1000) + 60);
    expect(first?.resetAt).toBeLessThanOrEqual(Math.ceil(after / 1000) + 60);
    expect(first?.retryAfter).toBe(60);
  });

  test('failed authentications are counted separately from public requests', async () => {
    const address = newAddress();
    expect(admitted(await gateway.takes(address.failed, 70))).toBe(60);
    expect(await gateway.takes(address.public)).toMatchObject([{ admitted: true, remaining: 59 }]);
  });

  test('a refunded count admits one more request', async () => {
    const bucket = bucketOf.wrongPassword(`${crypto.randomUUID()}@example.com`);
    expect(admitted(await gateway.takes(bucket, 40))).toBe(30);
    await gateway.refunds(bucket);
    expect(admitted(await gateway.takes(bucket, 2))).toBe(1);
    const { windows } = await stored(gateway, bucket);
    expect(windows.wrong_passwords?.count).toBe(30);
  });

  test('repeated requests of a refused client cost no call of the object', async () => {
    const address = newAddress();
    const [refused] = (await gateway.takes(address.public, 61)).filter((decision) => !decision.admitted);
    const { calls } = await gateway.inspect(address.public);
    expect(calls).toBe(61);
    for (const decision of await gateway.takes(address.public, 50)) {
      expect(decision).toMatchObject({ admitted: false, limit: 60, remaining: 0, resetAt: refused?.resetAt });
      expect(decision.retryAfter).toBeGreaterThan(0);
      expect(decision.retryAfter).toBeLessThanOrEqual(60);
    }
    expect((await gateway.inspect(address.public)).calls).toBe(61);
  });

  test('many requests cause one write per second', async () => {
    const { reads, writes } = newProject();
    await Promise.all([gateway.takes(reads, 300), gateway.takes(writes, 100)]);
    const { windows, rowsChanged, alarm, delays } = await eventually(async () => {
      const inspection = await gateway.inspect(reads);
      expect(inspection.windows).toMatchObject({ reads: { count: 300 }, writes: { count: 100 } });
      return inspection;
    });
    expect(new Set(delays)).toEqual(new Set([1000]));
    // A write is at most two rows: the record and the alarm.
    expect(rowsChanged).toBeLessThanOrEqual(2 * delays.length);
    expect(alarm).toBe(Math.max(...Object.values(windows).map(({ endsAt }) => endsAt)));
  });

  test('a denied request writes nothing', async () => {
    const address = newAddress();
    await gateway.takes(address.failed, 60);
    const { rowsChanged } = await gateway.inspect(address.failed);
    expect(admitted(await gateway.takes(address.failed, 100))).toBe(0);
    expect((await gateway.inspect(address.failed)).rowsChanged).toBe(rowsChanged);
  });

  test.runIf(IS_NIGHTLY)('an evicted object continues counting', async () => {
    const { reads } = newProject();
    const [first] = await gateway.takes(reads, 5);
    await eventually(async () => {
      expect((await gateway.inspect(reads)).windows).toMatchObject({ reads: { count: 5 } });
    });
    await gateway.evict(reads);
    expect((await gateway.inspect(reads)).calls).toBe(0);
    expect(await gateway.takes(reads)).toMatchObject([{ remaining: 994, resetAt: first?.resetAt }]);
  });

  test('a call to an object that is reset is repeated', async () => {
    const { failed } = newAddress();
    await gateway.takes(failed, 3);
    const decisions = await gateway.takesInReset(failed, 4);
    expect(admitted(decisions)).toBe(4);
    expect(Math.min(...decisions.map(({ remaining }) => remaining))).toBeLessThanOrEqual(53);
  });
});

describe('at the end of a window', () => {
  let stateDir: string;
  let gateway: RateLimitGateway;

  beforeAll(async () => {
    stateDir = await newStateDir();
    gateway = await startRateLimitGateway({ stateDir, windowSeconds: WINDOW_SECONDS });
  });
  afterAll(async () => {
    await gateway.stop();
    await rm(stateDir, { recursive: true });
  });

  test('a client with repeated requests is admitted, not earlier', async () => {
    const { writes } = newProject();
    const decisions = await gateway.takes(writes, 201);
    const resetAt = decisions[0]?.resetAt ?? 0;
    expect(admitted(decisions)).toBe(200);
    await gateway.advance(writes, (WINDOW_SECONDS / 2) * 1000);
    const [refused] = await gateway.takes(writes);
    expect(refused).toMatchObject({ admitted: false, resetAt });
    await gateway.advance(writes, (WINDOW_SECONDS / 2) * 1000);
    const [again] = await gateway.takes(writes);
    expect(again).toMatchObject({ admitted: true, remaining: 199 });
    expect(again?.resetAt).toBeGreaterThan(resetAt);
  });

  test('the storage of an object is empty', async () => {
    const address = newAddress();
    await gateway.takes(address.failed, 3);
    await gateway.takes(address.public, 3);
    await eventually(async () => {
      expect((await gateway.inspect(address.public)).windows).toMatchObject({
        failed_authentication: { count: 3 },
        public: { count: 3 },
      });
    });
    await gateway.advance(address.public, WINDOW_SECONDS * 1000);
    expect(await stored(gateway, address.public)).toEqual({ windows: {}, rest: {}, alarm: null });
  });
});

describe('when workerd crashes', () => {
  async function crashAfter(act: (gateway: RateLimitGateway) => Promise<void>, windowSeconds: number) {
    const stateDir = await newStateDir();
    onTestFinished(() => rm(stateDir, { recursive: true }));
    const first = await startRateLimitGateway({ stateDir, windowSeconds });
    await act(first).finally(first.crash);
    const second = await startRateLimitGateway({ stateDir, windowSeconds });
    onTestFinished(second.stop);
    return second;
  }

  test('a failed authentication is counted before its response', async () => {
    const address = newAddress();
    const gateway = await crashAfter(async ({ takes }) => {
      await takes(address.failed, 59);
    }, 60);
    expect(await gateway.takes(address.failed)).toMatchObject([{ admitted: true, remaining: 0 }]);
    expect(await gateway.takes(address.failed)).toMatchObject([{ admitted: false, remaining: 0 }]);
  });

  test.runIf(IS_NIGHTLY)('a count that was written survives', async () => {
    const { reads } = newProject();
    const gateway = await crashAfter(async ({ takes, inspect }) => {
      await takes(reads, 10);
      await eventually(async () => {
        expect((await inspect(reads)).windows).toMatchObject({ reads: { count: 10 } });
      });
    }, 60);
    expect(await gateway.takes(reads)).toMatchObject([{ remaining: 989 }]);
  });

  test.runIf(IS_NIGHTLY)('its storage is still emptied', async () => {
    const address = newAddress();
    const gateway = await crashAfter(async ({ takes }) => {
      await takes(address.failed);
    }, 3);
    await eventually(async () => {
      expect(await stored(gateway, address.failed)).toEqual({ windows: {}, rest: {}, alarm: null });
    });
  });
});
