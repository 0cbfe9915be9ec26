import { defineConfig } from 'vitest/config';
import { LONG_FILES } from './test/support/long-files.ts';
import { LongFirst } from './test/support/long-first.ts';
import { keepTemporaryFilesInMemory } from './test/support/memory-folder.ts';
import { IS_NIGHTLY } from './test/support/nightly.ts';

/** Attacks of one tenant on another: `npm run test:neighbours`. */
const NEIGHBOURS = 'test/neighbours/**/*.test.ts';
/** They replace a module, which works only where no other file has loaded it. */
const MOCKED = 'test/**/*.mocked.test.ts';
/** The packages that benchmarks compare with contain tests. */
const PACKAGES = '**/node_modules/**';
const RUN_FOLDER = 'test/support/run-folder.ts';
/** Files that a run names are found, whether they are long or not. */
const NAMES_FILES = process.argv.slice(2).some((word) => word.startsWith('test/'));

/**
 * Node ignores `NODE_COMPILE_CACHE` in a process that root has started and that runs as another user, as those do whose
 * files start hosts. Their threads compare schemas.
 */
const KEEP_COMPILED = `--import=data:text/javascript,${encodeURIComponent(`
  import { enableCompileCache } from 'node:module';
  enableCompileCache(process.env.NODE_COMPILE_CACHE);`)}`;

/** Ends what hangs. It says nothing about how long a test may take on a busy machine. */
const HANGS_AFTER_MS = 300_000;
/**
 * A worker runs files of all kinds and loads each module once, which saves a quarter of the processor time.
 */
const IN_ONE_POOL = {
  maxWorkers: 3,
  isolate: false,
  execArgv: [KEEP_COMPILED],
  testTimeout: HANGS_AFTER_MS,
  hookTimeout: HANGS_AFTER_MS,
};

const OTHERS = [PACKAGES, MOCKED, NEIGHBOURS];
const WITH_SHARED_STACK = {
  globalSetup: [RUN_FOLDER, 'test/support/stack/shared-stack.ts'],
  setupFiles: 'test/support/stack/with-shared-stack.ts',
  ...IN_ONE_POOL,
};

// The processes that run the files inherit it.
keepTemporaryFilesInMemory();

export default defineConfig({
  test: {
    silent: 'passed-only',
    sequence: { sequencer: LongFirst },
    projects: [
      {
        test: {
          name: 'main',
          include: ['test/**/*.test.ts'],
          exclude: [...OTHERS, ...(IS_NIGHTLY || NAMES_FILES ? [] : LONG_FILES)],
          ...WITH_SHARED_STACK,
        },
      },
      { test: { name: 'long', include: LONG_FILES, exclude: OTHERS, ...WITH_SHARED_STACK } },
      { test: { name: 'mocked', include: [MOCKED], globalSetup: RUN_FOLDER, ...IN_ONE_POOL, isolate: true } },
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
