import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { AgentSettings } from '../settings.ts';

/** PostgreSQL writes where it logs into a file of its data directory, anew at each rotation. */
export function currentPostgresLog({ PGDATA_DIR }: AgentSettings): string | null {
  const [, path] = /^jsonlog (.+)$/m.exec(readIfThere(join(PGDATA_DIR, 'current_logfiles'))) ?? [];
  return path === undefined ? null : resolve(PGDATA_DIR, path);
}

/** Gone for a moment whenever PostgreSQL is. */
function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return '';
    throw error;
  }
}
