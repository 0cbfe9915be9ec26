import { defineConfig } from 'vitest/config';
import { LongFirst } from './test/support/long-first.ts';

/** Suffixes say what a test needs: `.worker` workerd, `.pg` PostgreSQL and PgBouncer, `.e2e` the whole stack. */
const SERVERS = 'test/**/*.pg.test.ts';
const STACK = 'test/**/*.e2e.test.ts';
/** Attacks of one tenant on another: `npm run test:neighbours`. */
const NEIGHBOURS = 'test/neighbours/**/*.test.ts';
/** The packages that benchmarks compare with contain tests. */
const PACKAGES = '**/node_modules/**';
const RUN_FOLDER = 'test/support/run-folder.ts';

/** One pool for all projects: files with servers mostly wait for them, and quick files fill the gaps. */
const IN_ONE_POOL = { maxWorkers: 3, testTimeout: 120_000, hookTimeout: 120_000 };

export default defineConfig({
  test: {
    silent: 'passed-only',
    sequence: { sequencer: LongFirst },
    projects: [
      {
        test: {
          name: 'unit',
          include: ['test/**/*.test.ts'],
          exclude: [PACKAGES, SERVERS, STACK],
          globalSetup: RUN_FOLDER,
          ...IN_ONE_POOL,
        },
      },
      { test: { name: 'servers', include: [SERVERS], globalSetup: RUN_FOLDER, ...IN_ONE_POOL } },
      {
        test: {
          name: 'stack',
          include: [STACK],
          exclude: [PACKAGES, NEIGHBOURS],
          globalSetup: [RUN_FOLDER, 'test/support/stack/shared-stack.ts'],
          ...IN_ONE_POOL,
        },
      },
      {
        test: {
          name: 'neighbours',
          sequence: { groupOrder: 1 },
          include: [NEIGHBOURS],
          globalSetup: RUN_FOLDER,
          ...IN_ONE_POOL,
          maxWorkers: 1,
        },
      },
    ],
  },
});
