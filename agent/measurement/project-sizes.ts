import type { ProjectSizes } from '../../shared/measurement.ts';
import type { Queryable } from '../postgres/connect.ts';
import { readSizes } from './read-sizes.ts';

/** The present sizes of the projects' finalized databases. The session limits the time of a statement. */
export async function readProjectSizes(
  session: Queryable,
  projectIds: readonly string[],
): Promise<ProjectSizes[]> {
  const { rows } = await session.query<{ project_id: string; branch_id: string; oid: string }>(
    `SELECT project_id, branch_id, pg_database.oid::text FROM branch JOIN pg_database ON datname = database
     WHERE project_id = ANY ($1)`,
    [projectIds],
  );
  const bytes = await readSizes(
    session,
    rows.map(({ oid }) => oid),
  );
  return [...Map.groupBy(rows, ({ project_id }) => project_id)].map(([project_id, branches]) => ({
    project_id,
    sizes: Object.fromEntries(
      branches.flatMap(({ branch_id, oid }) => {
        const size = bytes.get(oid);
        return size === undefined ? [] : [[branch_id, size]];
      }),
    ),
  }));
}

/** Projects whose quota is used up, which deleted data frees. */
export async function readWriteBlocked(session: Queryable): Promise<string[]> {
  const { rows } = await session.query<{ project_id: string }>(
    'SELECT project_id FROM project WHERE write_blocked_since IS NOT NULL ORDER BY project_id',
  );
  return rows.map(({ project_id }) => project_id);
}
