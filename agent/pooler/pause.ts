import { DATABASE_NAME_MAX } from '../../shared/branch/database-name.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { openAdminConsole, showDatabases, showDemand, withAdminConsoles } from './admin-console.ts';
import { type Instance, instancesNow, readRestart } from './restart-state.ts';

const PAUSE_WITHIN_MS = 2_000;
const RESUME_WITHIN_MS = 5_000;
const POLL_EVERY_MS = 2;
/** Longest wait for a login under way, and for waiting clients that could begin one. */
const LOGGED_IN_WITHIN_MS = 500;
const SERVED_WITHIN_MS = 100;

/** PgBouncer's answer to PAUSE when it is about to end, and holds the clients of all databases. */
const ALL_HELD = /^already suspended\/paused/;

/** A hyphen has to be quoted in the console, and PgBouncer cuts an argument at 63 bytes, quotes included. */
const argument = (database: string) => (database.includes('-') ? identifier(database) : database);

export const canPause = (database: string) => argument(database).length <= DATABASE_NAME_MAX;

/**
 * Makes the pooler hold the database's clients: those in a transaction finish it, the others wait. The reply
 * to PAUSE is not awaited: another database's PAUSE can delay it, and a RESUME elsewhere loses it. The
 * database's flag counts instead, which survives this session, this process and a RELOAD.
 * @throws HostError POOLER_UNAVAILABLE
 */
export async function pause(settings: AgentSettings, database: string): Promise<void> {
  const hold = (console: Session, instance: Instance) => holdClients(settings, console, instance, database);
  await withAdminConsoles(settings, hold);
  // During a restart, a second PgBouncer may have started meanwhile.
  if (readRestart(settings).phase !== 'none') await withAdminConsoles(settings, hold);
}

async function holdClients(
  settings: AgentSettings,
  console: Session,
  instance: Instance,
  database: string,
): Promise<void> {
  const pausing = await openAdminConsole(settings, instance);
  try {
    await waitForLogins(console, database);
    let refusal = '';
    pausing.query(`PAUSE ${argument(database)}`).catch((error: Error) => {
      refusal = error.message;
    });
    const isHeld = async () => ALL_HELD.test(refusal) || (await hasFlag(console, database, true));
    if (await pollUntil(isHeld, { within: PAUSE_WITHIN_MS, every: POLL_EVERY_MS })) return;
    throw new HostError(
      'POOLER_UNAVAILABLE',
      `PgBouncer did not pause ${database}: ${refusal || 'no reply'}`,
    );
  } finally {
    // Not awaited: a console that waits for PAUSE closes late.
    pausing.end().catch(() => {});
  }
}

/**
 * Holds the clients that an instance will get. It has no session with the database, so the reply comes
 * immediately.
 */
export const pauseAlone = (console: Session, database: string) =>
  console.query(`PAUSE ${argument(database)}`).catch(() => {});

/** Waits until no login of the database is under way at the pooler. RECONNECT cuts them off too. */
export const untilLoggedIn = (settings: AgentSettings, database: string) =>
  withAdminConsoles(settings, (console) => waitForLogins(console, database));

/**
 * Waits for the pooler's logins to PostgreSQL. PAUSE cuts them off, which counts as a failed login and would
 * disconnect the first client that needs a server connection after RESUME. Where no client waits, no login
 * begins.
 */
async function waitForLogins(console: Session, database: string): Promise<void> {
  const start = performance.now();
  const isQuiet = async () => {
    const { waiting, loggingIn } = await showDemand(console, database);
    return loggingIn === 0 && (waiting === 0 || performance.now() - start > SERVED_WITHIN_MS);
  };
  await pollUntil(isQuiet, { within: LOGGED_IN_WITHIN_MS, every: POLL_EVERY_MS });
}

/**
 * Releases the database's clients. It is no error if they were not held, or if the pooler does not have the
 * database.
 * @throws HostError POOLER_UNAVAILABLE
 */
export const resume = (settings: AgentSettings, database: string) =>
  withAdminConsoles(settings, async (console) => {
    await console.query(`RESUME ${argument(database)}`).catch(() => {});
    const isReleased = () => hasFlag(console, database, false);
    if (await pollUntil(isReleased, { within: RESUME_WITHIN_MS, every: POLL_EVERY_MS })) return;
    throw new HostError('POOLER_UNAVAILABLE', `PgBouncer did not resume ${database}`);
  });

/**
 * Opens a session with the pooler's console, so that the clients do not wait for that too.
 * @returns a function that releases them as `resume` does; to be called once
 */
export async function prepareResume(settings: AgentSettings, database: string): Promise<() => Promise<void>> {
  const { newClients } = instancesNow(settings);
  const console = await openAdminConsole(settings, newClients).catch(() => null);
  return async () => {
    await console?.query(`RESUME ${argument(database)}`).catch(() => {});
    console?.end().catch(() => {});
    await resume(settings, database);
  };
}

/** Whether the database's flag is `paused`. A database that the pooler does not serve has no clients. */
async function hasFlag(console: Session, database: string, paused: boolean): Promise<boolean> {
  const entry = (await showDatabases(console)).find(({ name }) => name === database);
  return (entry?.paused ?? paused) === paused;
}

/** A blocked branch is not served, and has no server connections. */
const NOT_SERVED = /^no such database/;

/**
 * Closes server connections as each becomes free, of one database or of all. Clients stay connected.
 * @throws HostError POOLER_UNAVAILABLE
 */
export const reconnectServers = (settings: AgentSettings, database?: string) =>
  withAdminConsoles(settings, async (console) => {
    const statement = database && canPause(database) ? `RECONNECT ${argument(database)}` : 'RECONNECT';
    await console.query(statement).catch((error: Error) => {
      if (!NOT_SERVED.test(error.message)) throw error;
    });
  });
