import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { CloneMethod } from '../cloning/create-clone.ts';
import { openPlatformSession, type Session } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';
import type { AgentSettings } from '../process/settings.ts';
import { SNAPSHOT_NAME } from '../snapshots/snapshot-databases.ts';
import { freeBytes } from '../volumes/volumes.ts';
import { type BaseCopy, dataOf, RECORD_FILE, removeUnfinished } from './base-copies.ts';
import { CLOCK } from './clock.ts';
import { pastFolders } from './folders.ts';

const run = promisify(execFile);
const MB = 2 ** 20;
const STDERR_BYTES = 64 * MB;

/** PostgreSQL notes the label in the files next to the WAL by which `doctor` knows backups. */
export const BASE_COPY_LABEL = 'branchgate base copy';

/** What of PGDATA_DIR a recovery needs. Everything else is of the running server, or of the operator. */
const COPIED = ['base', 'pg_xact', 'pg_multixact', 'pg_commit_ts', 'PG_VERSION', 'global'];
/** Folders without which PostgreSQL does not start. */
export const EMPTY = [
  'pg_wal/archive_status',
  'pg_wal/summaries',
  'pg_logical/snapshots',
  'pg_logical/mappings',
  'pg_replslot',
  'pg_dynshmem',
  'pg_notify',
  'pg_serial',
  'pg_snapshots',
  'pg_stat',
  'pg_stat_tmp',
  'pg_subtrans',
  'pg_tblspc',
  'pg_twophase',
];

/** `--reflink` of `cp`. `apart`: the copy gets blocks of its own. */
const SHARING = { reflink: 'always', copy: 'auto', apart: 'never' } as const;

/**
 * Copies files or folders beside the work of others. On a volume with shared blocks, each file is copied by its extents.
 * @throws Error; files that have vanished meanwhile are none
 */
export async function copyTree(from: string, to: string, method: keyof typeof SHARING): Promise<void> {
  const command = ['-n', '10', '/bin/cp', '--archive', `--reflink=${SHARING[method]}`, '-T', '--', from, to];
  await run('/usr/bin/nice', command, { env: { LC_ALL: 'C' }, maxBuffer: STDERR_BYTES }).catch((error) => {
    const lines = String(error.stderr ?? '')
      .split('\n')
      .filter(Boolean);
    // A table that was dropped after its folder was read.
    if (lines.length > 0 && lines.every((line) => line.endsWith(': No such file or directory'))) return;
    throw new Error(lines.at(-1) ?? error.message);
  });
}

interface BackupHost {
  settings: AgentSettings;
  cloneMethod: CloneMethod;
}

/**
 * Makes a base copy. PostgreSQL works on meanwhile.
 * @param fast with an immediate checkpoint, instead of one that takes minutes and disturbs nobody
 * @param apart OIDs of databases whose files get blocks of their own
 * @throws HostError HOST_FULL; Error if a file cannot be copied
 */
export async function makeBaseCopy(
  { settings, cloneMethod }: BackupHost,
  fast: boolean,
  apart: readonly string[],
): Promise<BaseCopy> {
  const folders = pastFolders(settings);
  await mkdir(folders.bases, { recursive: true, mode: 0o700 });
  await removeUnfinished(folders);
  if ((await freeBytes(folders.bases)) < 2 * settings.MIN_FREE_DISK_MB * MB)
    throw new HostError('HOST_FULL', 'the disk has no room for a base copy');
  const name = `base-${Date.now()}`;
  const data = dataOf(folders, name);
  await mkdir(data, { recursive: true, mode: 0o700 });
  const session = await openPlatformSession(settings, () => {});
  try {
    await session.query('SELECT pg_backup_start($1, $2)', [BASE_COPY_LABEL, fast]);
    const facts = await readFacts(session);
    for (const folder of EMPTY) await mkdir(join(data, folder), { recursive: true, mode: 0o700 });
    const present = await readdir(settings.PGDATA_DIR);
    for (const part of COPIED.filter((part) => present.includes(part)))
      await copyTree(join(settings.PGDATA_DIR, part), join(data, part), cloneMethod);
    // As a base backup of PostgreSQL does it: the control file is the newest.
    await copyTree(
      join(settings.PGDATA_DIR, 'global/pg_control'),
      join(data, 'global/pg_control'),
      cloneMethod,
    );
    const { rows } = await session.query<{ label: string; tablespaces: string; ended_at: string }>(
      `SELECT labelfile AS label, spcmapfile AS tablespaces,
         ${CLOCK} AS ended_at
       FROM pg_backup_stop(wait_for_archive => false)`,
    );
    const [stopped] = rows;
    const [, segment] = /^START WAL LOCATION: \S+ \(file ([0-9A-F]{24})\)$/m.exec(stopped?.label ?? '') ?? [];
    if (!stopped || segment === undefined) throw new Error('PostgreSQL gave no label of the backup');
    if (stopped.tablespaces.trim() !== '') throw new Error('a cluster with tablespaces has no base copies');
    await writeFile(join(data, 'backup_label'), stopped.label, { mode: 0o600 });
    const separated: string[] = [];
    for (const oid of apart) if (await separate(join(data, 'base', oid))) separated.push(oid);
    const copy = { ended_at: stopped.ended_at, segment, ...facts, apart: separated };
    const record = join(folders.bases, name, RECORD_FILE);
    await writeFile(`${record}.new`, JSON.stringify(copy), { mode: 0o600, flush: true });
    await rename(`${record}.new`, record);
    return { ...copy, name };
  } finally {
    await session.end();
  }
}

/** @returns false if the copy has no such folder: its database is new */
async function separate(folder: string): Promise<boolean> {
  if (!existsSync(folder)) return false;
  const copy = `${folder}.apart`;
  await copyTree(folder, copy, 'apart');
  await rm(folder, { recursive: true });
  await rename(copy, folder);
  return true;
}

async function readFacts(
  session: Session,
): Promise<Omit<BaseCopy, 'name' | 'ended_at' | 'segment' | 'apart'>> {
  const { rows: databases } = await session.query<{ oid: string; project_id: string }>(
    `SELECT d.oid::text, project_id FROM pg_database AS d JOIN branch ON database = datname
     UNION SELECT d.oid::text, project_id FROM pg_database AS d JOIN snapshot ON datname = ${SNAPSHOT_NAME}`,
  );
  const { rows } = await session.query<{ segment_bytes: number; logs_pages: boolean }>(
    `SELECT (SELECT setting::int FROM pg_settings WHERE name = 'wal_segment_size') AS segment_bytes,
       current_setting('data_checksums') = 'on' OR current_setting('wal_log_hints') = 'on' AS logs_pages`,
  );
  const [facts] = rows;
  if (!facts) throw new Error('PostgreSQL did not answer');
  return {
    ...facts,
    projects: Object.fromEntries(databases.map(({ oid, project_id }) => [oid, project_id])),
  };
}
