import { pollUntil } from '../poll-until.ts';
import type { Session } from '../postgres/connect.ts';
import { HostError } from '../servers/host-error.ts';
import { showLogins } from './console.ts';

/** A login takes some round trips. One that stays open for longer than this is ended. */
const LOG_IN_WITHIN_SECONDS = 2;
/** PgBouncer applies the timeout three times a second. */
const ENDED_WITHIN_MS = 5_000;
const POLL_EVERY_MS = 10;

/**
 * Waits until no client is logging in to these databases, and ends logins that take too long. It is called after the
 * rules refuse new clients and before the databases leave the pooler: PgBouncer (1.18 as well as 1.25) frees their
 * pools, but a login under way continues with the freed pool, which may be another tenant's by then.
 * A slow login to another database of this host may be ended as well. The next RELOAD restores the timeout.
 * @throws HostError RULES_NOT_APPLIED
 */
export async function endLogins(console: Session, databases: ReadonlySet<string>): Promise<void> {
  const haveEnded = async () => {
    if (!(await showLogins(console)).some((database) => databases.has(database))) return true;
    // Repeated at each check, because another change of the rules may have reloaded PgBouncer meanwhile.
    await console.query(`SET client_login_timeout = ${LOG_IN_WITHIN_SECONDS}`);
    return false;
  };
  if (!(await pollUntil(haveEnded, { within: ENDED_WITHIN_MS, every: POLL_EVERY_MS })))
    throw new HostError('RULES_NOT_APPLIED', 'PgBouncer does not end the logins under way');
}
