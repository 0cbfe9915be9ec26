import { appendFileSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { buildConsole } from '../../dev/console/build-console.ts';
import { bundleWorker } from '../../dev/gateway/bundle-worker.ts';
import type { OsUser } from '../../dev/processes/os-user.ts';
import { initializeDataFolder } from '../../dev/servers/data-folder.ts';
import { bundleAgent } from '../../dev/stack/agent-program.ts';
import type { Prepared } from '../../dev/stack/prepared.ts';
import { oncePerRun } from './run-folder.ts';

export const preparedAgent = (): Promise<string> => oncePerRun('branchgate-agent.mjs', bundleAgent);

/**
 * The tests kill processes; they do not simulate a loss of power. A killed server leaves its shared memory, which the data
 * folder contains then. Benchmarks run outside of Vitest, as a server does.
 */
const IN_TESTS = `fsync = off
dynamic_shared_memory_type = mmap
`;

/** @param binaries the folder of `initdb`. @param user owner of the data folder */
export const preparedCluster = (binaries: string, user: OsUser): Promise<string> =>
  oncePerRun('cluster', async (path) => {
    mkdirSync(path);
    await initializeDataFolder(path, { binaries, user });
    if (process.env.VITEST) appendFileSync(join(path, 'postgresql.auto.conf'), IN_TESTS);
  });

/** What the stacks of a test run start from. Clusters of one run have the same system identifier. */
export const PREPARED: Prepared = {
  agent: preparedAgent,
  worker: () => oncePerRun('worker.mjs', bundleWorker),
  console: () => oncePerRun('console', buildConsole),
  cluster: preparedCluster,
};
