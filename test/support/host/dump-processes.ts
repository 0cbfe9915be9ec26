import { readdirSync, readFileSync } from 'node:fs';
import type { AgentSettings } from '../../../agent/process/settings.ts';
import { eventually } from '../eventually.ts';
import { asRoot } from './host.ts';

/** Waits until pg_dump runs for this host, and kills it. */
export const killDumps = ({ STATE_DIR }: Pick<AgentSettings, 'STATE_DIR'>): Promise<void> =>
  eventually(async () => {
    const running = readdirSync('/proc').filter((name) => isDump(name, STATE_DIR));
    if (running.length === 0) throw new Error('no pg_dump runs');
    for (const pid of running) asRoot(() => process.kill(Number(pid), 'SIGKILL'));
  });

function isDump(pid: string, stateDir: string): boolean {
  if (!/^\d+$/.test(pid)) return false;
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`--file=${stateDir}/`);
  } catch {
    return false;
  }
}
