import { rmSync } from 'node:fs';
import { afterAll, beforeAll, describe } from 'vitest';
import { freePort } from '../support/free-port.ts';
import { type Stack, startStack, temporaryFolder, UNMEASURED } from '../support/stack/stack.ts';
import { describeCrossOrigin, ORIGINS } from './with-limits/cross-origin.ts';
import { describePlatform } from './with-limits/platform.ts';
import { describeRateLimits, READS, SQL_REQUESTS, WRITES } from './with-limits/rate-limits.ts';
import { describeSignInSecrets } from './with-limits/sign-in-secrets.ts';

/** A stack that limits requests, without measurements that would change records. Its last tests stop it. */
const devDir = temporaryFolder();
let stack: Stack;
let metricsPort: number;

beforeAll(async () => {
  metricsPort = await freePort();
  stack = await startStack({
    devDir,
    restarts: false,
    env: {
      ...UNMEASURED,
      LIMIT_READS_PER_MINUTE: String(READS),
      LIMIT_WRITES_PER_MINUTE: String(WRITES),
      LIMIT_SQL_PER_MINUTE: String(SQL_REQUESTS),
      CORS_ORIGINS: ORIGINS.join(', '),
      METRICS_PORT: String(metricsPort),
    },
  });
});
afterAll(async () => {
  await stack?.stop();
  rmSync(devDir, { recursive: true });
});

describe('the platform', () =>
  describePlatform(
    () => stack,
    () => metricsPort,
  ));

describe('rate limits', () => describeRateLimits(() => stack));

describe('a page of another origin', () => describeCrossOrigin(() => stack));

describe('secrets of a sign-in', () => describeSignInSecrets(() => stack));
