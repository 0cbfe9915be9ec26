import { defineConfig } from 'vitest/config';
import { LongFirst } from './test/support/long-first.ts';

/** Suffixes say what a test needs: `.worker` workerd, `.pg` PostgreSQL and PgBouncer, `.e2e` the whole stack. */
const SERVERS = 'test/**/*.pg.test.ts';
const STACK = 'test/**/*.e2e.test.ts';
/** What benchmarks compare with brings tests of its own. */
const OTHERS = '**/node_modules/**';

/** They wait for the quick ones, and are few at a time: each file has servers of its own, and mostly waits for them. */
const WITH_SERVERS = { testTimeout: 120_000, hookTimeout: 120_000, maxWorkers: 3 };

export default defineConfig({
  test: {
    silent: 'passed-only',
    sequence: { sequencer: LongFirst },
    projects: [
      {
        test: {
          name: 'unit',
          include: ['test/**/*.test.ts'],
          exclude: [OTHERS, SERVERS, STACK],
          testTimeout: 20_000,
          hookTimeout: 30_000,
          maxWorkers: 2,
        },
      },
      { test: { name: 'servers', include: [SERVERS], sequence: { groupOrder: 1 }, ...WITH_SERVERS } },
      {
        test: {
          name: 'stack',
          include: [STACK],
          globalSetup: 'test/support/stack/shared-stack.ts',
          sequence: { groupOrder: 2 },
          ...WITH_SERVERS,
        },
      },
    ],
  },
});
