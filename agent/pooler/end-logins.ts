import { setTimeout as sleep } from 'node:timers/promises';
import type { Session } from '../postgres/connect.ts';
import { HostError } from '../servers/host-error.ts';
import { showLogins } from './console.ts';

/** A login takes some round trips; one that is kept open for longer than this is ended. */
const LOG_IN_WITHIN_SECONDS = 2;
/** PgBouncer looks three times a second for whom to end. */
const ENDED_WITHIN_MS = 5_000;
const LOOK_EVERY_MS = 10;

/**
 * Waits until nobody is logging in to these databases; who takes too long is ended. To be called once the rules refuse
 * newcomers, and before the databases leave the pooler: PgBouncer (1.18 as well as 1.25) frees their pools, but a login
 * under way goes on with the freed one. Another tenant's pool may be in its place by then.
 * A slow login elsewhere on this host may be ended as well. The next RELOAD puts the timeout back.
 * @throws HostError RULES_NOT_APPLIED
 */
export async function endLogins(console: Session, databases: ReadonlySet<string>): Promise<void> {
  const underWay = async () => (await showLogins(console)).some((database) => databases.has(database));
  for (const deadline = performance.now() + ENDED_WITHIN_MS; await underWay(); await sleep(LOOK_EVERY_MS)) {
    if (performance.now() > deadline)
      throw new HostError('RULES_NOT_APPLIED', 'PgBouncer does not end the logins under way');
    // Each time: another change of the rules may have reloaded it meanwhile.
    await console.query(`SET client_login_timeout = ${LOG_IN_WITHIN_SECONDS}`);
  }
}
