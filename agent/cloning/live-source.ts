import type { Host } from '../host.ts';
import { canPause, pause, reconnectServers, resume } from '../pooler/pause.ts';
import type { Session } from '../postgres/connect.ts';
import { tryLock } from '../postgres/locks.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { emptyDatabase, lockedBy } from '../postgres/source-sessions.ts';
import { HostError } from '../servers/host-error.ts';
import type { AgentSettings } from '../settings.ts';

const SOURCE_MISSING = '3D000';
const SOURCE_IN_USE = '55006';
const CANCELLED = '57014';

interface LiveClone {
  source: string;
  /** Whether to have the pooler hold its clients at once, or only if somebody turns out to be there. */
  hold: boolean;
  /** Milliseconds to wait for sessions that are in a transaction. */
  busyWait: number;
  /** Starts the `CREATE DATABASE` in the session. */
  create: () => Promise<void>;
}

/**
 * Clones a database while its clients go on: PostgreSQL copies only a database without sessions, so the
 * pooler holds them for that moment and idle direct sessions are ended. The clients are let go whatever
 * happens here; should this process die, the next look at the pooler does it.
 * @param session runs `create`, and holds the source's lock
 * @returns milliseconds the pooled clients were held
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, POOLER_UNAVAILABLE
 */
export async function cloneLive(host: Host, session: Session, clone: LiveClone): Promise<number> {
  const { source, busyWait } = clone;
  if (!clone.hold && (await cloneUnused(host, session, clone))) return 0;
  if (!canPause(source)) return cloneUnpaused(host, session, clone);
  const started = performance.now();
  try {
    await pause(host.settings, source);
    if (!(await emptyDatabase(host.postgres, source, { wait: busyWait }))) throw sourceBusy(source);
    await createAlone(host, session, clone);
  } finally {
    await resume(host.settings, source);
  }
  return performance.now() - started;
}

/**
 * Clones a database that nobody is in, without the pooler's help: who logs in meanwhile waits for the clone's
 * lock, and no longer than the clone takes.
 * @returns whether it went so; not if somebody was there first
 */
async function cloneUnused(host: Host, session: Session, clone: LiveClone): Promise<boolean> {
  try {
    await createAlone(host, session, { ...clone, busyWait: 0 });
    return true;
  } catch (error) {
    if (error instanceof HostError && error.code === 'SOURCE_BUSY') return false;
    throw error;
  }
}

/** Lets the database's clients go on, unless a clone that is under way holds them: it lets them go itself. */
export async function resumeUnlessCloning(
  settings: AgentSettings,
  session: Session,
  database: string,
): Promise<void> {
  if (await tryLock(session, `source:${database}`)) await resume(settings, database);
}

/**
 * For the few names that the pooler's console can't take: the clone takes the database's lock, and the
 * pooler's sessions, closed one by one as they come free, are opened again only after it.
 */
async function cloneUnpaused(host: Host, session: Session, clone: LiveClone): Promise<number> {
  let started = performance.now();
  await createAlone(host, session, clone, () => {
    started = performance.now();
    return reconnectServers(host.settings);
  });
  return performance.now() - started;
}

/**
 * Runs the creation and keeps the source empty beside it, for direct sessions that logged in just before.
 * PostgreSQL itself waits five seconds for them; a busy one ends the creation sooner.
 */
async function createAlone(
  host: Host,
  session: Session,
  { source, busyWait, create }: LiveClone,
  onLocked: () => Promise<unknown> = async () => {},
): Promise<void> {
  const pid = await ownPid(session);
  const created = new AbortController();
  const creation = create().finally(() => created.abort());
  const guard = async () => {
    const { signal } = created;
    await lockedBy(host.postgres, pid, source, signal);
    if (signal.aborted) return;
    await onLocked();
    const emptied = await emptyDatabase(host.postgres, source, { wait: busyWait, signal });
    if (!emptied) await host.postgres.query('SELECT pg_cancel_backend($1)', [pid]);
  };
  const [creating, guarding] = await Promise.allSettled([creation, guard()]);
  if (creating.status === 'rejected') throw asCloneError(creating.reason, source);
  if (guarding.status === 'rejected') throw guarding.reason;
}

async function ownPid(session: Session): Promise<number> {
  const { rows } = await session.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
  return rows[0]?.pid ?? 0;
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
