import { readdir, realpath, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { enforceAccess, unenforcedProjects } from '../access/enforce-access.ts';
import { resumeUnlessCloning } from '../cloning/live-source.ts';
import type { Host } from '../host.ts';
import { showDatabases, withConsoles } from '../pooler/console.ts';
import { makeAgentTables } from '../postgres/agent-tables.ts';
import { inTransaction } from '../postgres/connect.ts';
import { closeToPublic, protectDatabases } from '../postgres/database-settings.ts';
import { dropDatabase, readDatabases } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { dropUnusedRoles, restoreLogins } from '../postgres/roles.ts';
import { dropLeftovers } from '../snapshots/drop-leftovers.ts';
import { hintCowExtents } from './cow-hint.ts';

export type RecoveryStep = (host: Host) => Promise<void>;

/**
 * The steps that repair the host after a crash of the agent or of a server, in this order. Each is idempotent and may
 * run at any time, also concurrently with another agent process or a control tool.
 */
export const RECOVERY_STEPS: readonly RecoveryStep[] = [
  migrateTables,
  resumeAbandoned,
  truncateNotifications,
  dropInterrupted,
  dropSnapshotLeftovers,
  closeOpenDatabases,
  protectBranches,
  removeLeakedDirectories,
  hintCopyOnWrite,
  retryUnusedRoles,
  resetChangedLogins,
  syncRules,
  enforceStoredAccess,
];

/** @returns the steps that failed */
export async function recover(
  host: Host,
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

function migrateTables({ settings }: Host): Promise<void> {
  return makeAgentTables(settings);
}

function retryUnusedRoles({ sessions }: Host): Promise<void> {
  return withLocks(sessions, [], dropUnusedRoles);
}

function resetChangedLogins({ sessions }: Host): Promise<void> {
  return withLocks(sessions, [], (session) => inTransaction(session, () => restoreLogins(session)));
}

/** Ends the sessions that a previous agent process did not end before it died. */
async function enforceStoredAccess(host: Host): Promise<void> {
  const errors: unknown[] = [];
  for (const projectId of await unenforcedProjects(host.postgres))
    await withLocks(host.sessions, [], (session) => enforceAccess(host, session, projectId)).catch((error) =>
      errors.push(error),
    );
  // A project that cannot be enforced does not hold up the others.
  if (errors.length > 0) throw errors[0];
}

function syncRules({ rules }: Host): Promise<void> {
  return rules.sync();
}

/** Resumes every paused database, unless a clone that is under way holds its clients. */
export async function resumeAbandoned(host: Host): Promise<void> {
  const entries = (await withConsoles(host.settings, showDatabases)).flat();
  for (const name of new Set(entries.filter(({ paused }) => paused).map(({ name }) => name)))
    await withLocks(host.sessions, [], (session) => resumeUnlessCloning(host.settings, session, name));
}

/**
 * Removes notifications that no listener waits for any more. PostgreSQL does that when it writes one, but not once the
 * queue is full: NOTIFY would then fail on the whole host for ever, although the listener that held it up has gone.
 */
export async function truncateNotifications({ postgres }: Host): Promise<void> {
  await postgres.query('SELECT pg_notification_queue_usage()');
}

async function dropInterrupted({ postgres }: Host): Promise<void> {
  const databases = await readDatabases(postgres);
  for (const { name } of databases.filter(({ interrupted }) => interrupted))
    await dropDatabase(postgres, name);
}

function dropSnapshotLeftovers(host: Host): Promise<void> {
  return dropLeftovers(host);
}

function hintCopyOnWrite({ settings }: Host): Promise<void> {
  return hintCowExtents(settings.PGDATA_DIR);
}

async function closeOpenDatabases({ postgres }: Host): Promise<void> {
  await closeToPublic(postgres);
}

/** Branches of an earlier release have no limits, and the settings may have changed. */
function protectBranches({ postgres, settings }: Host): Promise<void> {
  return protectDatabases(postgres, settings);
}

/**
 * Removes directories below `base/` that belong to no database: PostgreSQL does not remove the one it was filling
 * when it crashed. The lock prevents databases from being created or dropped meanwhile. It is taken with NOWAIT,
 * because a waiting lock request would block every clone behind it.
 */
async function removeLeakedDirectories({ settings, sessions }: Host): Promise<void> {
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
