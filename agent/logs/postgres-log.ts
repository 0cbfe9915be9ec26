import { readdirSync, readFileSync } from 'node:fs';
import { dirname, extname, join, resolve } from 'node:path';
import type { AgentSettings } from '../settings.ts';

/** PostgreSQL's log files in the configuration of this release, whose names sort by time, and of earlier ones. */
const BY_TIME = /^postgresql-\d{8}-\d{6}\.(json|log)$/;
const BY_WEEKDAY = /^postgresql-(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\.(json|log)$/;

export const isPostgresLog = (name: string) => BY_TIME.test(name) || BY_WEEKDAY.test(name);

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
