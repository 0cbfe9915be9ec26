import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { AgentSettings } from '../settings.ts';

/** Whether this process may end PostgreSQL's sessions. */
export function canGuard({ PGDATA_DIR }: Pick<AgentSettings, 'PGDATA_DIR'>): boolean {
  try {
    const pid = Number(readFileSync(join(PGDATA_DIR, 'postmaster.pid'), 'utf8').split('\n')[0]);
    // Signal 0 is a test.
    return pid > 0 && process.kill(pid, 0);
  } catch {
    return false;
  }
}
