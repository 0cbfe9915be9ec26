import { readdir, realpath, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type AccessHost, enforceAccess, unenforcedProjects } from '../access/enforce-access.ts';
import { resumeUnlessCloning } from '../cloning/live-source.ts';
import { showDatabases, withAdminConsoles } from '../pooler/admin-console.ts';
import { makeAgentTables } from '../postgres/agent-tables.ts';
import { restoreBranchSettings } from '../postgres/branch-settings.ts';
import { inTransaction, type OwnSession, openPlatformSession, type Pool } from '../postgres/connect.ts';
import { closeToPublic, dropDatabase, protectDatabases, readDatabases } from '../postgres/databases.ts';
import { writeExtensions } from '../postgres/extensions.ts';
import { withLocks } from '../postgres/locks.ts';
import { ensureQueryLogins, restoreLogins } from '../postgres/roles.ts';
import { dropUnusedRoles } from '../postgres/unused-roles.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import { dropLeftovers } from '../snapshots/snapshot-databases.ts';
import { hintCowExtents } from '../volumes/xfs.ts';

/** What it takes to repair a host. */
interface RecoveryHost extends AccessHost {
  /** For short statements. */
  postgres: Pool;
  /** For operations: each holds its locks in one of these sessions. */
  sessions: Pool;
}

export type RecoveryStep = (host: RecoveryHost) => Promise<void>;

/**
 * The steps that repair the host after a crash of the agent or of a server, in this order. Each is idempotent
 * and may run at any time, also concurrently with another agent process or a control tool.
 */
const RECOVERY_STEPS: readonly RecoveryStep[] = [
  migrateTables,
  resumeAbandoned,
  truncateNotifications,
  dropInterrupted,
  dropSnapshotLeftovers,
  closeOpenDatabases,
  makeQueryLogins,
  protectBranches,
  removeLeakedDirectories,
  hintCopyOnWrite,
  retryUnusedRoles,
  resetChangedLogins,
  syncRules,
  writeTrustedExtensions,
  enforceStoredAccess,
];

/** @returns the steps that failed */
export async function recover(
  host: RecoveryHost,
  steps = RECOVERY_STEPS,
  onFailure: (step: RecoveryStep, error: unknown) => void = () => {},
): Promise<RecoveryStep[]> {
  const failed: RecoveryStep[] = [];
  for (const step of steps) {
    await step(host).catch((error) => {
      failed.push(step);
      onFailure(step, error);
    });
  }
  return failed;
}

function migrateTables({ settings }: RecoveryHost): Promise<void> {
  return makeAgentTables(settings);
}

function retryUnusedRoles({ sessions }: RecoveryHost): Promise<void> {
  return withLocks(sessions, [], dropUnusedRoles);
}

/** Branches of an earlier release have none. */
function makeQueryLogins({ sessions }: RecoveryHost): Promise<void> {
  return withLocks(sessions, [], ensureQueryLogins);
}

/** A login may have used another password while no agent ran, so its sessions are ended next. */
async function resetChangedLogins({ sessions }: RecoveryHost): Promise<void> {
  await withLocks(sessions, [], (session) =>
    inTransaction(session, async () => {
      await restoreLogins(session);
      await restoreBranchSettings(session);
    }),
  );
}

/** Ends the sessions that a previous agent process did not end before it died. */
async function enforceStoredAccess(host: RecoveryHost): Promise<void> {
  const errors: unknown[] = [];
  for (const projectId of await unenforcedProjects(host.postgres))
    await withLocks(host.sessions, [], (session) => enforceAccess(host, session, projectId)).catch((error) =>
      errors.push(error),
    );
  // A project that cannot be enforced does not hold up the others.
  if (errors.length > 0) throw errors[0];
}

function syncRules({ rules }: RecoveryHost): Promise<void> {
  return rules.sync();
}

/** Those of the server may have changed while it was away. */
function writeTrustedExtensions({ settings, postgres }: RecoveryHost): Promise<void> {
  return writeExtensions(settings, postgres);
}

/** Resumes every paused database, unless a clone that is under way holds its clients. */
async function resumeAbandoned(host: RecoveryHost): Promise<void> {
  const entries = (await withAdminConsoles(host.settings, showDatabases)).flat();
  for (const name of new Set(entries.filter(({ paused }) => paused).map(({ name }) => name)))
    await withLocks(host.sessions, [], (session) => resumeUnlessCloning(host.settings, session, name));
}

/**
 * Removes notifications that no listener waits for any more. PostgreSQL does that when it writes one, but not
 * once the queue is full: NOTIFY would then fail on the whole host for ever, although the listener that held
 * it up has gone.
 */
async function truncateNotifications({ postgres }: RecoveryHost): Promise<void> {
  await postgres.query('SELECT pg_notification_queue_usage()');
}

async function dropInterrupted({ postgres }: RecoveryHost): Promise<void> {
  const databases = await readDatabases(postgres);
  for (const { name } of databases.filter(({ interrupted }) => interrupted))
    await dropDatabase(postgres, name);
}

function dropSnapshotLeftovers(host: RecoveryHost): Promise<void> {
  return dropLeftovers(host);
}

function hintCopyOnWrite({ settings }: RecoveryHost): Promise<void> {
  return hintCowExtents(settings.PGDATA_DIR);
}

async function closeOpenDatabases({ postgres }: RecoveryHost): Promise<void> {
  await closeToPublic(postgres);
}

/** Branches of an earlier release have no limits, and the settings may have changed. */
function protectBranches({ postgres, settings }: RecoveryHost): Promise<void> {
  return protectDatabases(postgres, settings);
}

/**
 * Removes directories below `base/` that belong to no database: PostgreSQL does not remove the one it was
 * filling when it crashed. The lock prevents databases from being created or dropped meanwhile. It is taken
 * with NOWAIT, because a waiting lock request would block every clone behind it.
 */
async function removeLeakedDirectories({ settings, sessions }: RecoveryHost): Promise<void> {
  const base = join(settings.PGDATA_DIR, 'base');
  await withLocks(sessions, [], (session) =>
    inTransaction(session, async () => {
      await session.query('LOCK TABLE pg_database IN SHARE MODE NOWAIT');
      const { rows } = await session.query<{ oid: string; data_directory: string }>(
        "SELECT oid::text, current_setting('data_directory') AS data_directory FROM pg_database",
      );
      // In another cluster's data directory every database would look like a leak.
      if ((await realpath(rows[0]?.data_directory ?? '')) !== (await realpath(settings.PGDATA_DIR))) {
        throw new Error(
          'PGDATA_DIR is not the data directory of the PostgreSQL that listens on POSTGRES_PORT',
        );
      }
      const known = new Set(rows.map(({ oid }) => oid));
      const leaked = (await readdir(base)).filter((name) => /^\d+$/.test(name) && !known.has(name));
      for (const name of leaked) await rm(join(base, name), { recursive: true });
    }),
  );
}

const POLL_EVERY_MS = 1_000;
const AT_EVERY_POLL = [resumeAbandoned, truncateNotifications];

/**
 * Recovers the host at the first poll, and again whenever PostgreSQL was away. An idle session detects that:
 * it is lost when the server stops, is killed or restarts after a crash.
 */
export class ServerWatch {
  readonly #host: RecoveryHost;
  readonly #log: Log;
  readonly #troubles: TroubleLog;
  #session: OwnSession | null = null;
  #due: readonly RecoveryStep[] = RECOVERY_STEPS;

  constructor(host: RecoveryHost, log: Log) {
    this.#host = host;
    this.#log = log;
    this.#troubles = new TroubleLog(log);
  }

  /** Polls until `signal`. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await sleep(POLL_EVERY_MS, undefined, { signal }).catch(() => {});
      await this.poll();
    }
    await this.#session?.end();
  }

  /** Tries each recovery step that is due. Two of them run at every poll. Never throws. */
  async poll(): Promise<void> {
    if (!this.#session) {
      this.#due = RECOVERY_STEPS;
      this.#session = await openPlatformSession(this.#host.settings, () => {
        this.#session = null;
      }).catch(() => null);
    }
    const failed = await recover(this.#host, this.#due, ({ name: step }, error) =>
      this.#troubles.report('recovery.failed', step, error, { step }),
    );
    this.#due = [...new Set([...AT_EVERY_POLL, ...failed])];
    if (failed.length === 0 && this.#troubles.clearAll()) this.#log('recovery.done');
  }
}
