import { stat, statfs } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { CONNECTION_LOGS } from '../logs/connection-logs.ts';
import { presentPostgresLogs } from '../logs/postgres-log.ts';
import type { AgentSettings } from '../process/settings.ts';

type Paths = Pick<AgentSettings, 'PGDATA_DIR' | 'POOLER_LOG'>;

export interface Volume {
  /** What a tenant can fill on it. */
  names: string[];
  freeBytes: number;
  sizeBytes: number;
}

/** Folders that tenants can fill, directly or through a server. */
const foldersOf = ({ PGDATA_DIR, POOLER_LOG }: Paths): [string, string][] => [
  ['data', PGDATA_DIR],
  ['wal', join(PGDATA_DIR, 'pg_wal')],
  ['temporary files', join(PGDATA_DIR, 'base/pgsql_tmp')],
  ...presentPostgresLogs({ PGDATA_DIR }).map((path): [string, string] => ['logs', dirname(path)]),
  ['logs', dirname(POOLER_LOG)],
];

/** The volumes of these folders. A folder that does not exist yet has none. */
export async function readVolumes(settings: Paths): Promise<Volume[]> {
  const volumes = new Map<number, Volume>();
  for (const [name, folder] of foldersOf(settings)) {
    const found = await stat(folder).catch(() => null);
    if (!found) continue;
    const volume = volumes.get(found.dev) ?? { names: [], ...(await readSpace(folder)) };
    if (!volume.names.includes(name)) volume.names.push(name);
    volumes.set(found.dev, volume);
  }
  return [...volumes.values()];
}

/** Names of the logs in which attempts are counted, and the bytes free on the volume of each. */
export async function readLogVolumes(
  settings: AgentSettings,
): Promise<{ name: string; freeBytes: number }[]> {
  return Promise.all(
    CONNECTION_LOGS.flatMap(({ name, locate }) => {
      const path = locate(settings);
      return path ? [freeBytes(dirname(path)).then((free) => ({ name, freeBytes: free }))] : [];
    }),
  );
}

/** Free bytes of the folder's volume, without the blocks that are reserved for root. */
export const freeBytes = async (folder: string): Promise<number> => (await readSpace(folder)).freeBytes;

export const diskSize = async (folder: string): Promise<number> => (await readSpace(folder)).sizeBytes;

async function readSpace(folder: string): Promise<Pick<Volume, 'freeBytes' | 'sizeBytes'>> {
  const { bavail, blocks, bsize } = await statfs(folder);
  return { freeBytes: bavail * bsize, sizeBytes: blocks * bsize };
}
