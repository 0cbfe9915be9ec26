import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import type { Queryable } from './connect.ts';
import { readDatabases } from './databases.ts';

export type HostBranch = MethodResult<'host.inventory'>['branches'][number];

/**
 * Every branch of the host, or of a project: those in the agent's tables, and databases that only their mark
 * identifies.
 */
export async function readBranches(db: Queryable, projectId: string | null = null): Promise<HostBranch[]> {
  const { rows: stored } = await db.query<BranchIdentity>(
    `SELECT branch_id, project_id, job_id, database FROM branch ${projectId ? 'WHERE project_id = $1' : ''}
     ORDER BY database`,
    projectId ? [projectId] : [],
  );
  const databases = await readDatabases(db);
  const marks = databases.flatMap(({ name, mark }) =>
    mark && (projectId === null || mark.project_id === projectId) ? [{ ...mark, database: name }] : [],
  );
  const finalized = new Set(marks.map(({ branch_id }) => branch_id));
  const names = new Set(databases.map(({ name }) => name));
  const storedIds = new Set(stored.map(({ branch_id }) => branch_id));
  const state = ({ branch_id, job_id }: BranchIdentity): HostBranch['state'] => {
    if (finalized.has(branch_id)) return 'ready';
    return names.has(buildDatabaseName(job_id)) ? 'building' : 'prepared';
  };
  return [...stored, ...marks.filter(({ branch_id }) => !storedIds.has(branch_id))].map((branch) => ({
    project_id: branch.project_id,
    branch_id: branch.branch_id,
    database: branch.database,
    state: state(branch),
    made_by: branch.job_id,
  }));
}

/** The job that made the branch, as `readBranches` has it; null if the host has no such branch. */
export async function readMaker(db: Queryable, branchId: string): Promise<string | null> {
  const { rows } = await db.query<{ job_id: string }>('SELECT job_id FROM branch WHERE branch_id = $1', [
    branchId,
  ]);
  if (rows[0]) return rows[0].job_id;
  return (await readDatabases(db)).find(({ mark }) => mark?.branch_id === branchId)?.mark?.job_id ?? null;
}

/** The ids and the final database name that every branch operation carries. */
export interface BranchIdentity {
  job_id: string;
  project_id: string;
  branch_id: string;
  database: string;
}

/** The tenant of a project; the project itself while it is not known. */
export async function readTenant(db: Queryable, projectId: string): Promise<string> {
  const { rows } = await db.query<{ tenant: string | null }>(
    'SELECT tenant FROM project WHERE project_id = $1',
    [projectId],
  );
  return rows[0]?.tenant ?? projectId;
}

const PREFIX = buildDatabaseName('');

/**
 * The jobs of resets whose clones are not swapped in. The job of any other clone is that of a branch, which
 * is stored before the clone is made.
 */
export async function readResets(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ job_id: string }>(
    `SELECT substr(datname, ${PREFIX.length + 1})::uuid AS job_id FROM pg_database
     WHERE datname ~ '^${PREFIX}[0-9a-f]{32}$'
     EXCEPT SELECT job_id FROM branch ORDER BY job_id`,
  );
  return rows.map(({ job_id }) => job_id);
}
