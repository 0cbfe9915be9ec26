import { setTimeout as sleep } from 'node:timers/promises';
import { DATABASE_NAME_MAX } from '../../shared/branch/database-name.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError } from '../servers/host-error.ts';
import type { AgentSettings } from '../settings.ts';
import { openConsole, showDatabases, showDemand, withConsole } from './console.ts';

const PAUSE_WITHIN_MS = 2_000;
const RESUME_WITHIN_MS = 5_000;
const LOOK_EVERY_MS = 2;
/** How long a login may take at most, and how long those may wait who could begin one. */
const LOGGED_IN_WITHIN_MS = 500;
const SERVED_WITHIN_MS = 100;

/** A hyphen has to be quoted in the console, and PgBouncer cuts an argument at 63 bytes, quotes included. */
const argument = (database: string) => (database.includes('-') ? identifier(database) : database);

export const canPause = (database: string) => argument(database).length <= DATABASE_NAME_MAX;

/**
 * Makes the pooler hold the database's clients: those in a transaction finish it, the others wait.
 * The reply to PAUSE is never waited for: another database's PAUSE can hold it back, a RESUME elsewhere loses
 * it. The flag is what counts, and it survives this session, this process and a RELOAD.
 * @throws HostError POOLER_UNAVAILABLE
 */
export const pause = (settings: AgentSettings, database: string): Promise<void> =>
  withConsole(settings, async (looking) => {
    const asking = await openConsole(settings);
    try {
      await untilLoggedIn(looking, database);
      const refusal = asking.query(`PAUSE ${argument(database)}`).then(
        () => null,
        (error: Error) => error,
      );
      if (await seen(looking, database, true, PAUSE_WITHIN_MS)) return;
      const error = await Promise.race([refusal, null]);
      throw new HostError(
        'POOLER_UNAVAILABLE',
        `PgBouncer did not pause ${database}: ${error?.message ?? 'no reply'}`,
      );
    } finally {
      // Not awaited: a console that waits for PAUSE says goodbye late.
      asking.end().catch(() => {});
    }
  });

/**
 * PAUSE cuts off a login to PostgreSQL, which then counts as failed: whoever is the first to ask for a server connection
 * after RESUME would be thrown out for it. Where nobody waits, none is about to begin either.
 */
async function untilLoggedIn(console: Session, database: string): Promise<void> {
  const start = performance.now();
  for (; ; await sleep(LOOK_EVERY_MS)) {
    const { waiting, loggingIn } = await showDemand(console, database);
    const elapsed = performance.now() - start;
    if (loggingIn === 0 && (waiting === 0 || elapsed > SERVED_WITHIN_MS)) return;
    if (elapsed > LOGGED_IN_WITHIN_MS) return;
  }
}

/**
 * Lets the clients go on. No error when they were not held, or the database is gone from the pooler.
 * @throws HostError POOLER_UNAVAILABLE
 */
export const resume = (settings: AgentSettings, database: string): Promise<void> =>
  withConsole(settings, async (console) => {
    await console.query(`RESUME ${argument(database)}`).catch(() => {});
    if (await seen(console, database, false, RESUME_WITHIN_MS)) return;
    throw new HostError('POOLER_UNAVAILABLE', `PgBouncer did not resume ${database}`);
  });

/** Whether the database's flag comes to be `paused` in time. One the pooler does not serve has no clients to hold. */
async function seen(console: Session, database: string, paused: boolean, within: number): Promise<boolean> {
  for (const deadline = performance.now() + within; ; await sleep(LOOK_EVERY_MS)) {
    const entry = (await showDatabases(console)).find(({ name }) => name === database);
    if ((entry?.paused ?? paused) === paused) return true;
    if (performance.now() > deadline) return false;
  }
}

/**
 * Closes server connections as soon as each is free: of one database, or of all. Clients keep theirs.
 * @throws HostError POOLER_UNAVAILABLE
 */
export const reconnectServers = (settings: AgentSettings, database?: string) =>
  withConsole(settings, (console) =>
    console.query(database && canPause(database) ? `RECONNECT ${argument(database)}` : 'RECONNECT'),
  );
