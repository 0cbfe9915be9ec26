import { appendFileSync, chownSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { bundleAgent } from '../../dev/build/agent.ts';
import { buildConsole } from '../../dev/build/console.ts';
import { bundleWorker } from '../../dev/build/worker.ts';
import { initializeDataFolder } from '../../dev/stack/data-folder.ts';
import type { OsUser } from '../../dev/stack/os-user.ts';
import { serverCertificate } from '../../dev/stack/servers.ts';
import type { Prepared } from '../../dev/stack/site.ts';
import { oncePerRun } from './run-folder.ts';

export const preparedAgent = (): Promise<string> => oncePerRun('branchgate-agent.mjs', bundleAgent);

/** A killed server leaves its shared memory, which the data folder contains then. A standby copies `postgresql.conf`. */
export const IN_DATA_FOLDER = 'dynamic_shared_memory_type = mmap\n';

/**
 * The tests kill processes; they do not simulate a loss of power. Benchmarks run outside of Vitest, as a
 * server does.
 */
const IN_TESTS = 'fsync = off\n';

/** @param binaries the folder of `initdb`. @param user owner of the data folder */
export const preparedCluster = (binaries: string, user: OsUser): Promise<string> =>
  oncePerRun('cluster', async (path) => {
    mkdirSync(path);
    await initializeDataFolder(path, { binaries, user });
    appendFileSync(join(path, 'postgresql.conf'), IN_DATA_FOLDER);
    if (process.env.VITEST) appendFileSync(join(path, 'postgresql.auto.conf'), IN_TESTS);
  });

/** A folder with the certificate of each host of the run: three programs make one. */
export const preparedCertificate = (user: OsUser): Promise<string> =>
  oncePerRun('tls', async (path) => {
    mkdirSync(path);
    chownSync(path, user.uid, user.gid);
    await serverCertificate(path, user);
  });

/** What the stacks of a test run start from. Clusters of one run have the same system identifier. */
export const PREPARED: Prepared = {
  agent: preparedAgent,
  worker: () => oncePerRun('worker.mjs', bundleWorker),
  console: () => oncePerRun('console', buildConsole),
  cluster: preparedCluster,
  certificate: preparedCertificate,
};
