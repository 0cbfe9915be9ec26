import { buildDatabaseName, snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { groupName, queryLoginName } from '../../shared/branch/login.ts';
import { identifier, inTransaction, literal, type Queryable, type Session } from '../postgres/connect.ts';
import { dropDatabase, protectWork } from '../postgres/databases.ts';
import { dropRoles } from '../postgres/unused-roles.ts';
import type { AgentSettings } from '../process/settings.ts';

/**
 * The database that a copy fills: a clone of the empty branch, which no rule file admits clients to. A login
 * that exists for it alone has the rights of the project's owners. It becomes the database that a reset swaps
 * in once everything is copied, so what a killed or failed copy leaves is dropped as a whole.
 */

/** A database that is being filled, or that a killed call has left. It can be dropped at any time. */
export const loadDatabaseName = (jobId: string) => `bgload_${jobId.replaceAll('-', '')}`;

/** The login of one copy. The rule files admit the agent to it, as to all of this form. */
export const loadLoginName = (jobId: string) => queryLoginName(jobId);

interface Load {
  job_id: string;
  project_id: string;
}

/** A copy: one job copies the branches of a project one after another. */
interface OfBranch {
  job_id: string;
  branch_id: string;
}

/** Drops the database as far as it exists, and its login. */
export async function removeLoad(session: Session, { job_id }: Pick<Load, 'job_id'>): Promise<void> {
  await dropDatabase(session, loadDatabaseName(job_id));
  await dropRoles(session, [loadLoginName(job_id)]);
}

/**
 * Makes the login.
 * @param temporaryMb what the temporary files of one session may take, if that is more than usual
 */
export function openToLoad(
  session: Session,
  settings: AgentSettings,
  { job_id, project_id }: Load,
  temporaryMb: number,
): Promise<void> {
  const name = identifier(loadDatabaseName(job_id));
  const login = identifier(loadLoginName(job_id));
  const owners = identifier(groupName(project_id, 'owner'));
  return inTransaction(session, async () => {
    await session.query(
      `CREATE ROLE ${login} LOGIN;
       GRANT ${owners} TO ${login} WITH INHERIT FALSE, SET TRUE;
       ${protectWork(settings, loadDatabaseName(job_id), { project_id, temporaryMb })};
       GRANT CONNECT ON DATABASE ${name} TO ${login};
       GRANT CONNECT, CREATE, TEMPORARY ON DATABASE ${name} TO ${owners}`,
    );
  });
}

/**
 * Makes the filled database the one that a reset swaps in, in one transaction.
 * @param result of the copy, which a repeated call returns
 */
export function closeLoad(session: Session, { job_id, branch_id }: OfBranch, result: unknown): Promise<void> {
  const [name, build] = [loadDatabaseName(job_id), buildDatabaseName(job_id)].map(identifier);
  const login = identifier(loadLoginName(job_id));
  return inTransaction(session, async () => {
    await session.query(
      `ALTER DATABASE ${name} CONNECTION LIMIT 0;
       REVOKE ALL ON DATABASE ${name} FROM ${login};
       DROP ROLE ${login};
       ALTER DATABASE ${name} RENAME TO ${build};
       COMMENT ON DATABASE ${build} IS ${literal(JSON.stringify({ branch_id, result }))}`,
    );
  });
}

/** Makes the filled database a snapshot, to which nobody can connect, in one transaction. */
export function closeLoadAsSnapshot(
  session: Session,
  {
    job_id,
    project_id,
    branch_id,
    snapshot_id,
    database,
  }: OfBranch & Load & { snapshot_id: string; database: string },
): Promise<void> {
  const [name, snapshot] = [loadDatabaseName(job_id), snapshotDatabaseName(snapshot_id)].map(identifier);
  const [login, owners] = [loadLoginName(job_id), groupName(project_id, 'owner')].map(identifier);
  const values = [snapshot_id, project_id, branch_id, database].map(literal).join(', ');
  return inTransaction(session, async () => {
    await session.query(
      `INSERT INTO snapshot (snapshot_id, project_id, branch_id, source, kind, independent) VALUES (${values}, 'taken', true);
       ALTER DATABASE ${name} ALLOW_CONNECTIONS false CONNECTION LIMIT 0;
       COMMENT ON DATABASE ${name} IS NULL;
       REVOKE ALL ON DATABASE ${name} FROM ${login}, ${owners};
       DROP ROLE ${login};
       ALTER DATABASE ${name} RENAME TO ${snapshot}`,
    );
  });
}

/**
 * The result of the copy that an earlier call has finished; undefined if there is none. A call for another branch of the
 * job that came late may have left one, which is dropped.
 */
export async function finishedLoad(db: Queryable, { job_id, branch_id }: OfBranch): Promise<unknown> {
  const name = buildDatabaseName(job_id);
  const { rows } = await db.query<{ comment: string | null }>(
    `SELECT shobj_description(oid, 'pg_database') AS comment FROM pg_database WHERE datname = $1 AND datconnlimit <> -2`,
    [name],
  );
  const [found] = rows;
  if (!found) return undefined;
  const finished: Partial<OfBranch> & { result?: unknown } = JSON.parse(found.comment ?? '{}');
  if (finished.branch_id === branch_id) return finished.result;
  await dropDatabase(db, name);
  return undefined;
}

/** Ends its sessions, also in the middle of a statement. */
export const endLoadSessions = (db: Queryable, { job_id }: Pick<Load, 'job_id'>) =>
  db.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [
    loadDatabaseName(job_id),
  ]);
