import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { BRANCH_ROLES, groupName, loginName, queryLoginName } from '../../shared/branch/login.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { identifier, literal, type Pool, type Queryable, type Session } from '../postgres/connect.ts';
import { dropDatabase } from '../postgres/databases.ts';
import { tryLock, withLocks } from '../postgres/locks.ts';

/**
 * `deleted`: of a deleted branch. The disk may need the room of that and of a `checkpoint` before its time is over.
 * `standing`: the agent's own, which the gateway does not know.
 */
export type SnapshotKind = 'taken' | 'checkpoint' | 'replaced' | 'deleted' | 'standing';

/**
 * A copy that is to replace a snapshot, or the clone that it has replaced. Either can be dropped at any time.
 */
export const copyDatabaseName = (snapshotId: string) => `bgcopy_${snapshotId.replaceAll('-', '')}`;

/** A clone of a snapshot that is open to one comparison. It can be dropped at any time. */
export const comparedDatabaseName = (id: string) => `bgdiff_${id.replaceAll('-', '')}`;

/** The scratch database of a comparison of schemas. It can be dropped at any time. */
export const proofDatabaseName = (id: string) => `bgproof_${id.replaceAll('-', '')}`;

/** The copy on which statements are tried. It can be dropped at any time. */
export const trialDatabaseName = (id: string) => `bgtry_${id.replaceAll('-', '')}`;
/** The clone on which a change is tried. It can be dropped at any time. */
export const rehearsedDatabaseName = (id: string) => `bgchange_${id.replaceAll('-', '')}`;

/** A clone that is being masked, or that a killed call has left. It can be dropped at any time. */
export const maskedDatabaseName = (snapshotId: string) => `bgmask_${snapshotId.replaceAll('-', '')}`;

/** The NOLOGIN role that owns the functions of a masking. */
export const maskingRoleName = (snapshotId: string) => `u_${snapshotId.replaceAll('-', '')}_mask`;

/** SQL: `snapshotDatabaseName` of the column `snapshot_id`. */
export const SNAPSHOT_NAME = "'bgsnap_' || replace(snapshot_id::text, '-', '')";

/** @returns null if there is no such database; one that a crash left half-dropped is dropped first */
export async function readSnapshotSize(session: Session, snapshotId: string): Promise<number | null> {
  const name = snapshotDatabaseName(snapshotId);
  const { rows } = await session.query<{ bytes: string; interrupted: boolean }>(
    'SELECT pg_database_size(oid) AS bytes, datconnlimit = -2 AS interrupted FROM pg_database WHERE datname = $1',
    [name],
  );
  const [found] = rows;
  if (found?.interrupted) await dropDatabase(session, name);
  return found && !found.interrupted ? Number(found.bytes) : null;
}

/** IDs of the standing snapshots. */
export async function readStanding(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ snapshot_id: string }>(
    "SELECT snapshot_id FROM snapshot WHERE kind = 'standing'",
  );
  return rows.map(({ snapshot_id }) => snapshot_id);
}

/**
 * Every snapshot that the gateway knows, or all of a project with its standing ones, and whether its database is complete.
 */
export async function readSnapshots(db: Queryable, projectId: string | null = null) {
  const { rows } = await db.query<{
    project_id: string;
    snapshot_id: string;
    ready: boolean;
    independent: boolean;
  }>(
    `SELECT project_id, snapshot_id, pg_database.oid IS NOT NULL AS ready, independent
     FROM snapshot LEFT JOIN pg_database
       ON datname = ${SNAPSHOT_NAME} AND datconnlimit <> -2
     WHERE ${projectId ? 'project_id = $1' : "kind <> 'standing'"} ORDER BY taken_at, snapshot_id`,
    projectId ? [projectId] : [],
  );
  return rows;
}

/**
 * Databases that a crash left: half-dropped snapshots, copies, clones and scratch databases for comparisons, masked ones, and those
 * that are filled from a source elsewhere. Another process may work on them.
 */
async function readLeftovers(db: Queryable): Promise<{ name: string; snapshotId: string }[]> {
  const { rows } = await db.query<{ name: string; snapshotId: string }>(
    `SELECT datname AS name, substr(datname, length(datname) - 31)::uuid AS "snapshotId" FROM pg_database
     WHERE datname ~ '^bg(copy|diff|mask|load|proof|try)_[0-9a-f]{32}$' OR (datname ~ '^bgsnap_[0-9a-f]{32}$' AND datconnlimit = -2)`,
  );
  return rows;
}

/**
 * Statements that make a branch's database a snapshot. Its grants would prevent the drop of the logins, and
 * its mark would make it the branch.
 * @param kind whether the branch is reset or deleted
 */
export function closeAsSnapshot(
  { project_id, branch_id, database, snapshot_id }: Params<'reset.swap'>,
  kind: Extract<SnapshotKind, 'replaced' | 'deleted'>,
): string {
  const snapshot = snapshotDatabaseName(snapshot_id);
  const name = identifier(snapshot);
  const grantees = [
    ...BRANCH_ROLES.map((role) => loginName(branch_id, role)),
    queryLoginName(branch_id),
    groupName(project_id, 'owner'),
  ].map(identifier);
  const values = [snapshot_id, project_id, branch_id, database, kind].map(literal).join(', ');
  return `INSERT INTO snapshot (snapshot_id, project_id, branch_id, source, kind) VALUES (${values});
    ALTER DATABASE ${identifier(database)} RENAME TO ${name};
    ALTER DATABASE ${name} ALLOW_CONNECTIONS false CONNECTION LIMIT 0;
    COMMENT ON DATABASE ${name} IS NULL;
    REVOKE ALL ON DATABASE ${name} FROM ${grantees.join(', ')};
    ALTER ROLE ${identifier(loginName(branch_id, 'owner'))} IN DATABASE ${name} RESET role`;
}

/** Drops half-dropped snapshots and unfinished copies, except those that another process works on. */
export async function dropLeftovers({
  postgres,
  sessions,
}: Record<'postgres' | 'sessions', Pool>): Promise<void> {
  // Usually there is none, and no session for operations is needed.
  if ((await readLeftovers(postgres)).length === 0) return;
  await withLocks(sessions, [], async (session) => {
    for (const { name, snapshotId } of await readLeftovers(session))
      if (await tryLock(session, `clone:${snapshotId}`)) await dropDatabase(session, name);
  });
}

/** Drops the snapshot as far as it exists. Waits while it is being taken or copied. */
export function dropSnapshot(
  host: { sessions: Pool; spares: { dropOf: (db: Queryable, snapshotId: string) => Promise<void> } },
  { snapshot_id }: Pick<Params<'snapshot.drop'>, 'snapshot_id'>,
): Promise<MethodResult<'snapshot.drop'>> {
  return withLocks(host.sessions, [`clone:${snapshot_id}`], async (session) => {
    const dropped = (await readSnapshotSize(session, snapshot_id)) !== null;
    for (const name of [snapshotDatabaseName, copyDatabaseName, maskedDatabaseName].map((nameOf) =>
      nameOf(snapshot_id),
    ))
      await dropDatabase(session, name);
    await host.spares.dropOf(session, snapshot_id);
    await session.query('DELETE FROM snapshot WHERE snapshot_id = $1', [snapshot_id]);
    return { dropped };
  });
}
