import { readdir, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { repeat } from '../repeat.ts';
import type { AgentSettings } from '../settings.ts';
import { type Log, TroubleLog } from '../trouble-log.ts';
import { isPostgresLog, presentPostgresLogs } from './postgres-log.ts';

const CHECK_EVERY_MS = 10_000;
const DAY_MS = 24 * 60 * 60 * 1000;
const DAYS = 7;
const MB = 1024 * 1024;

type Settings = Pick<AgentSettings, 'PGDATA_DIR' | 'LOG_FOLDER_MB'>;

/**
 * Deletes PostgreSQL's oldest logs until the rest take at most LOG_FOLDER_MB and none is older than a week. The
 * present logs and files of other programs stay.
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

/** Repeats it until `signal` aborts. Never throws. */
export async function runLogFolderLoop(settings: Settings, log: Log, signal: AbortSignal): Promise<void> {
  const troubles = new TroubleLog(log);
  const check = () =>
    boundLogFolder(settings).then(
      () => troubles.clearAll(),
      (error) => troubles.report('log_folder.unbounded', 'folder', error),
    );
  await repeat(check, CHECK_EVERY_MS, signal);
}

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
