import { readdir, realpath, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { enforceAccess, unenforcedProjects } from '../access/enforce-access.ts';
import { resumeUnlessCloning } from '../cloning/live-source.ts';
import type { Host } from '../host.ts';
import { showDatabases, withConsole } from '../pooler/console.ts';
import { makeAgentTables } from '../postgres/agent-tables.ts';
import { inTransaction } from '../postgres/connect.ts';
import { dropDatabase, readDatabases } from '../postgres/databases.ts';
import { withLocks } from '../postgres/locks.ts';
import { dropUnusedRoles, restoreLogins } from '../postgres/roles.ts';

export type RecoveryStep = (host: Host) => Promise<void>;

/**
 * What puts the host in order after a crash of the agent or of a server, in this order. Each can be done at
 * any time and any number of times, also while another agent process or a control tool is at work.
 */
export const RECOVERY_STEPS: readonly RecoveryStep[] = [
  makeTables,
  resumeAbandoned,
  dropInterrupted,
  removeLeakedDirectories,
  retryUnusedRoles,
  resetChangedLogins,
  publishRules,
  enforceNotedAccess,
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

function makeTables({ settings }: Host): Promise<void> {
  return makeAgentTables(settings);
}

function retryUnusedRoles({ sessions }: Host): Promise<void> {
  return withLocks(sessions, [], dropUnusedRoles);
}

function resetChangedLogins({ sessions }: Host): Promise<void> {
  return withLocks(sessions, [], (session) => inTransaction(session, () => restoreLogins(session)));
}

/** Ends the sessions that an agent which died had still to end. */
async function enforceNotedAccess(host: Host): Promise<void> {
  for (const projectId of await unenforcedProjects(host.postgres))
    await withLocks(host.sessions, [], (session) => enforceAccess(host, session, projectId));
}

function publishRules({ rules }: Host): Promise<void> {
  return rules.sync();
}

/** Lets the clients of every paused database go on, unless a clone that is under way holds them. */
export async function resumeAbandoned(host: Host): Promise<void> {
  const paused = (await withConsole(host.settings, showDatabases)).filter((entry) => entry.paused);
  for (const { name } of paused)
    await withLocks(host.sessions, [], (session) => resumeUnlessCloning(host.settings, session, name));
}

async function dropInterrupted({ postgres }: Host): Promise<void> {
  const databases = await readDatabases(postgres);
  for (const { name } of databases.filter(({ interrupted }) => interrupted))
    await dropDatabase(postgres, name);
}

/**
 * Removes directories below `base/` that belong to no database: PostgreSQL forgets the one it was filling
 * when it crashed. The lock keeps anybody from creating or dropping a database meanwhile; it is not waited
 * for, since a waiting lock would hold up every clone behind it.
 */
async function removeLeakedDirectories({ settings, sessions }: Host): Promise<void> {
  const base = join(settings.PGDATA_DIR, 'base');
  await withLocks(sessions, [], (session) =>
    inTransaction(session, async () => {
      await session.query('LOCK TABLE pg_database IN SHARE MODE NOWAIT');
      const { rows } = await session.query<{ oid: string; data_directory: string }>(
        "SELECT oid::text, current_setting('data_directory') AS data_directory FROM pg_database",
      );
      // Another cluster's folder is full of directories that this server knows nothing of.
      if ((await realpath(rows[0]?.data_directory ?? '')) !== (await realpath(settings.PGDATA_DIR))) {
        throw new Error('PGDATA_DIR is not the data folder of the PostgreSQL that POSTGRES_PORT leads to');
      }
      const known = new Set(rows.map(({ oid }) => oid));
      const leaked = (await readdir(base)).filter((name) => /^\d+$/.test(name) && !known.has(name));
      for (const name of leaked) await rm(join(base, name), { recursive: true });
    }),
  );
}
