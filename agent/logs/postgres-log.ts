import { readdirSync, readFileSync } from 'node:fs';
import { readdir, rm, stat } from 'node:fs/promises';
import { dirname, extname, join, resolve } from 'node:path';
import type { Log } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';

/**
 * PostgreSQL's log files in the configuration of this release, whose names sort by time, and of earlier ones.
 */
const BY_TIME = /^postgresql-\d{8}-\d{6}\.(json|log)$/;
const BY_WEEKDAY = /^postgresql-(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\.(json|log)$/;

const isPostgresLog = (name: string) => BY_TIME.test(name) || BY_WEEKDAY.test(name);

type DataFolder = Pick<AgentSettings, 'PGDATA_DIR'>;

/** PostgreSQL writes the paths of its present logs to a file in its data directory at each rotation. */
export const presentPostgresLogs = ({ PGDATA_DIR }: DataFolder): string[] =>
  [...presentLogs(PGDATA_DIR).matchAll(/^\w+ (.+)$/gm)].map(([, path = '']) => resolve(PGDATA_DIR, path));

/** The present log that the agent reads; null while PostgreSQL is stopped. */
export function currentPostgresLog({ PGDATA_DIR }: DataFolder): string | null {
  const [, path] = /^jsonlog (.+)$/m.exec(presentLogs(PGDATA_DIR)) ?? [];
  return path === undefined ? null : resolve(PGDATA_DIR, path);
}

/** Logs of the same kind that PostgreSQL began after `from` and before `to`, in their order. */
export function postgresLogsBetween(from: string, to: string): string[] {
  const folder = dirname(to);
  if (dirname(from) !== folder) return [];
  const between = (path: string) => extname(path) === extname(to) && path > from && path < to;
  return readdirSync(folder)
    .filter((name) => BY_TIME.test(name))
    .map((name) => join(folder, name))
    .filter(between)
    .sort();
}

/** The file is missing while PostgreSQL is stopped. */
function presentLogs(dataDir: string): string {
  try {
    return readFileSync(join(dataDir, 'current_logfiles'), 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return '';
    throw error;
  }
}

const CHECK_EVERY_MS = 10_000;
const DAY_MS = 24 * 60 * 60 * 1000;
const DAYS = 7;
const MB = 1024 * 1024;

type Settings = Pick<AgentSettings, 'PGDATA_DIR' | 'LOG_FOLDER_MB'>;

/**
 * Deletes PostgreSQL's oldest logs until the rest take at most LOG_FOLDER_MB and none is older than a week.
 * The present logs and files of other programs stay.
 * @param now in milliseconds since the epoch
 */
export async function boundLogFolder(settings: Settings, now = Date.now()): Promise<void> {
  const present = new Set(presentPostgresLogs(settings));
  const folders = new Set([...present].map((path) => dirname(path)));
  for (const folder of folders) {
    let free = settings.LOG_FOLDER_MB * MB;
    const files = (await logsIn(folder)).sort((one, other) => other.modified - one.modified);
    // The present logs count first, because they stay whatever their size.
    for (const { path, bytes } of files) if (present.has(path)) free -= bytes;
    for (const { path, bytes, modified } of files.filter((file) => !present.has(file.path))) {
      free -= bytes;
      if (free < 0 || now - modified > DAYS * DAY_MS) await rm(path, { force: true });
    }
  }
}

export const runLogFolderLoop = (settings: Settings, log: Log, signal: AbortSignal): Promise<void> =>
  runLoop(() => boundLogFolder(settings), {
    every: CHECK_EVERY_MS,
    signal,
    log,
    failed: 'log_folder.unbounded',
  });

async function logsIn(folder: string) {
  const names = (await readdir(folder)).filter(isPostgresLog);
  return Promise.all(
    names.map(async (name) => {
      const path = join(folder, name);
      const { size, mtimeMs } = await stat(path);
      return { path, bytes: size, modified: mtimeMs };
    }),
  );
}
