import { canPause, pause, prepareResume, reconnectServers, resume, untilLoggedIn } from '../pooler/pause.ts';
import type { Pool, Session } from '../postgres/connect.ts';
import { runAlone, tryLock } from '../postgres/locks.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import type { AgentSettings } from '../process/settings.ts';
import { emptyDatabase } from './empty-database.ts';

/** What it takes to hold the clients of a database. */
export interface PausingHost {
  settings: AgentSettings;
  /** For short statements. */
  postgres: Pool;
  metrics: { countPause: (ms: number) => void };
}

const SOURCE_MISSING = '3D000';
const SOURCE_IN_USE = '55006';
const CANCELLED = '57014';

interface LiveClone {
  source: string;
  /** Whether the pooler holds the clients from the start, or only if there turn out to be sessions. */
  hold: boolean;
  /** Milliseconds to wait for sessions that are in a transaction. */
  busyWait: number;
  /** When the wait for sessions began, in milliseconds of `performance.now()`; by default with the lock. */
  since?: number;
  /** Starts the `CREATE DATABASE` in the session. */
  create: () => Promise<void>;
}

/**
 * Clones a database that clients use. PostgreSQL copies only a database without sessions, so the pooler holds
 * its clients during the copy and idle direct sessions are ended. The clients are released in every case; if
 * this process dies, the next agent's recovery releases them.
 * @param session runs `create`, and holds the source's lock
 * @returns milliseconds for which the pooled clients were held
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, POOLER_UNAVAILABLE
 */
export async function cloneLive(host: PausingHost, session: Session, clone: LiveClone): Promise<number> {
  const { source, busyWait } = clone;
  if (!clone.hold && (await cloneUnused(host, session, clone))) return 0;
  if (!canPause(source)) return cloneUnpaused(host, session, clone);
  const release = await prepareResume(host.settings, source);
  const started = performance.now();
  try {
    await pause(host.settings, source);
    // PostgreSQL looks for sessions only every 100 ms, so it begins when there are none, or when there is a crowd.
    const since = performance.now();
    if (!(await emptyDatabase(host.postgres, source, { wait: busyWait, since, crowds: true })))
      throw sourceBusy(source);
    await createAlone(host, session, { ...clone, since });
  } finally {
    await release();
    host.metrics.countPause(performance.now() - started);
  }
  return performance.now() - started;
}

/**
 * Clones a database without sessions and without the pooler's help. A login that begins meanwhile waits for
 * the clone's lock, no longer than the clone takes.
 * @returns false if there was a session after all, and nothing was made
 */
async function cloneUnused(host: PausingHost, session: Session, clone: LiveClone): Promise<boolean> {
  try {
    await createAlone(host, session, { ...clone, busyWait: 0 });
    return true;
  } catch (error) {
    if (error instanceof HostError && error.code === 'SOURCE_BUSY') return false;
    throw error;
  }
}

/**
 * Releases the database's pooled clients, unless a clone that is under way holds them and will release them.
 */
export async function resumeUnlessCloning(
  settings: AgentSettings,
  session: Session,
  database: string,
): Promise<void> {
  if (await tryLock(session, `source:${database}`)) await resume(settings, database);
}

/**
 * Clones a database whose name the pooler's console does not accept, which few names are. The clone takes the
 * database's lock; then the pooler closes its sessions as they become free and reopens them only after the
 * clone.
 */
async function cloneUnpaused(host: PausingHost, session: Session, clone: LiveClone): Promise<number> {
  await untilLoggedIn(host.settings, clone.source);
  let started = performance.now();
  await createAlone(host, session, clone, () => {
    started = performance.now();
    return reconnectServers(host.settings);
  });
  const pausedMs = performance.now() - started;
  host.metrics.countPause(pausedMs);
  return pausedMs;
}

/** Runs the creation. A session of the source that stays busy for longer than `busyWait` cancels it. */
async function createAlone(
  host: PausingHost,
  session: Session,
  { source, busyWait, since, create }: LiveClone,
  onLocked: () => Promise<unknown> = async () => {},
): Promise<void> {
  const { postgres } = host;
  await runAlone({ postgres, session }, source, create, async (signal) => {
    await onLocked();
    return emptyDatabase(postgres, source, { wait: busyWait, signal, since });
  }).catch((error) => {
    throw asCloneError(error, source);
  });
}

const sourceBusy = (source: string) =>
  new HostError('SOURCE_BUSY', `a session of ${source} stayed in a transaction for too long`);

function asCloneError(error: unknown, source: string): unknown {
  switch (sqlState(error)) {
    case SOURCE_MISSING:
      return new HostError('SOURCE_MISSING', `there is no database ${source}`);
    case SOURCE_IN_USE:
    case CANCELLED:
      return sourceBusy(source);
    default:
      return error;
  }
}
