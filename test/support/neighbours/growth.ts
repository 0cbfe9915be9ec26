import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type pg from 'pg';
import { hostFolder } from '../../../dev/stack/host-folder.ts';
import type { StackState } from '../../../dev/stack/stack.ts';
import { VOLUMES, type Volume } from './attack.ts';

const EVERY_MS = 250;

/** Bytes of all files below these folders; of a file that goes meanwhile, none. */
const sizeOf = (...folders: string[]): number =>
  folders
    .flatMap((folder) => {
      try {
        return readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((name) => join(folder, name));
      } catch {
        return [];
      }
    })
    .reduce((sum, path) => sum + (statSync(path, { throwIfNoEntry: false })?.size ?? 0), 0);

/**
 * Watches by how much each volume grows at most. The written WAL is counted, not its files, which PostgreSQL
 * uses again.
 * @param postgres a superuser's session that was opened before the attack
 * @returns ends it
 */
export async function watchGrowth({ data_dir, host_dir }: StackState, postgres: pg.Client) {
  const lsn = () =>
    postgres
      .query<{ bytes: string }>("select pg_current_wal_insert_lsn() - '0/0' as bytes")
      .then(({ rows }) => Number(rows[0]?.bytes));
  const sizes: Record<Volume, () => number | Promise<number>> = {
    log: () => sizeOf(join(data_dir, 'log'), hostFolder(host_dir, {}).logs),
    'temporary files': () => sizeOf(join(data_dir, 'base/pgsql_tmp')),
    notifications: () => sizeOf(join(data_dir, 'pg_notify')),
    wal: lsn,
  };
  const read = async (): Promise<Record<Volume, number>> => {
    const found = await Promise.all(
      VOLUMES.map(async (volume) => [volume, await Promise.resolve(sizes[volume]()).catch(() => 0)]),
    );
    return Object.fromEntries(found);
  };
  const before = await read();
  const most: Record<Volume, number> = { log: 0, 'temporary files': 0, notifications: 0, wal: 0 };
  let reading: Promise<void> = Promise.resolve();
  const timer = setInterval(() => {
    reading = reading.then(async () => {
      const now = await read();
      for (const volume of VOLUMES) most[volume] = Math.max(most[volume], now[volume] - before[volume]);
    });
  }, EVERY_MS);
  return async (): Promise<Record<Volume, number>> => {
    clearInterval(timer);
    await reading;
    return most;
  };
}
