import { rmSync } from 'node:fs';
import { afterAll, beforeAll, describe } from 'vitest';
import { type Stack, startStack, temporaryFolder, UNLIMITED, UNMEASURED } from '../support/stack/stack.ts';
import { describeAccess } from './without-limits/access.ts';
import { describeHostileRequests } from './without-limits/hostile-requests.ts';

/**
 * Requests for every operation, more than the limits allow. They share a stack that nothing else uses, because they
 * compare all of its records.
 */
const devDir = temporaryFolder();
let stack: Stack;

const start = async (limits: Record<string, string>) => {
  stack = await startStack({ devDir, restarts: false, env: { ...UNMEASURED, ...limits } });
};
beforeAll(() => start(UNLIMITED));
afterAll(async () => {
  await stack?.stop();
  rmSync(devDir, { recursive: true });
});

describe('access', () => describeAccess(() => stack));

describe('hostile requests', () =>
  describeHostileRequests(
    () => stack,
    async (limits) => {
      await stack.stop();
      await start(limits);
      return stack;
    },
  ));
