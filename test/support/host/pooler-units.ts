import { existsSync } from 'node:fs';
import { standbyMark } from '../../../agent/pooler/restart-state.ts';
import { repeat } from '../../../agent/process/loops.ts';
import type { TestHost } from './host.ts';

const POLL_EVERY_MS = 20;

/**
 * Does what systemd does with the units of PgBouncer and of its standby: restarts the one when it has ended,
 * and runs the other while the agent wants it.
 * @returns ends both
 */
export function runPoolerUnits(servers: TestHost): () => Promise<void> {
  const stop = new AbortController();
  const supervise = async () => {
    if (!servers.isRunning('pooler')) await servers.start('pooler');
    if (existsSync(standbyMark(servers.settings)) && !servers.isRunning('standby'))
      await servers.start('standby');
  };
  const supervised = repeat(supervise, POLL_EVERY_MS, stop.signal);
  return async () => {
    stop.abort();
    await supervised;
    await servers.end('standby', 'SIGQUIT');
  };
}
