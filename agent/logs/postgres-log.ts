import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { AgentSettings } from '../settings.ts';

/** PostgreSQL writes the path of its present log to a file in its data directory at each rotation. */
export function currentPostgresLog({ PGDATA_DIR }: AgentSettings): string | null {
  const [, path] = /^jsonlog (.+)$/m.exec(readIfThere(join(PGDATA_DIR, 'current_logfiles'))) ?? [];
  return path === undefined ? null : resolve(PGDATA_DIR, path);
}

/** The file is missing while PostgreSQL is stopped. */
function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return '';
    throw error;
  }
}
