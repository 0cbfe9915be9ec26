import { stat, statfs } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { CONNECTION_LOGS } from '../logs/connection-logs.ts';
import { presentPostgresLogs } from '../logs/postgres-log.ts';
import type { AgentSettings } from '../process/settings.ts';
import { BTRFS, XFS } from './disk-bytes.ts';

type Paths = Pick<AgentSettings, 'PGDATA_DIR' | 'POOLER_LOG'>;

/** Inodes of a volume: each file takes one. */
export interface Inodes {
  free: number;
  total: number;
  /** Below so many free ones nobody may take many, as below `MIN_FREE_DISK_MB`. */
  floor: number;
}

export interface Volume {
  /** What a tenant can fill on it. */
  names: string[];
  freeBytes: number;
  sizeBytes: number;
  /** Null on a file system that makes them as needed. */
  inodes: Inodes | null;
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

/** Inodes of the folder's volume; null on a file system that makes them as needed. */
export const readInodes = async (folder: string): Promise<Inodes | null> => (await readSpace(folder)).inodes;

export const diskSize = async (folder: string): Promise<number> => (await readSpace(folder)).sizeBytes;

/** File systems that make inodes as needed. Btrfs reports none, and XFS how many would fit. */
const MAKES_INODES = new Set([XFS, BTRFS]);
const FLOOR_MAX = 50_000;

async function readSpace(folder: string): Promise<Omit<Volume, 'names'>> {
  const { type, bavail, blocks, bsize, ffree, files } = await statfs(folder);
  const isBounded = files > 0 && !MAKES_INODES.has(type);
  return {
    freeBytes: bavail * bsize,
    sizeBytes: blocks * bsize,
    inodes: isBounded ? { free: ffree, total: files, floor: Math.min(FLOOR_MAX, files / 5) } : null,
  };
}

/** Whether so few inodes are free that nobody may take many. @param times the number that is few */
export const isShortOfInodes = ({ inodes }: Pick<Volume, 'inodes'>, times = 1): boolean =>
  inodes !== null && inodes.free < times * inodes.floor;
