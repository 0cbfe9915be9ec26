import type { Params } from '../../shared/protocol/operations.ts';
import type { Queryable, Session } from '../postgres/connect.ts';
import type { BranchAccess } from './rule-files.ts';

type AccessRules = Params<'access.apply'>['access'];

/** Keeps the rules of a project that is new to this host. To be called in a transaction. */
export async function introduceProject(
  session: Session,
  projectId: string,
  access: AccessRules,
): Promise<void> {
  const { rowCount } = await session.query(
    'INSERT INTO project (project_id, access_revision) VALUES ($1, $2) ON CONFLICT DO NOTHING',
    [projectId, access.revision],
  );
  if (rowCount === 1) await writeRules(session, projectId, access);
  else await replaceRules(session, projectId, access);
}

/**
 * Replaces the project's rules unless newer ones are known: calls may overtake each other.
 * A project that the host does not have has nobody to let in, so there is nothing to keep.
 * To be called in a transaction.
 */
export async function replaceRules(session: Session, projectId: string, access: AccessRules): Promise<void> {
  const { rowCount } = await session.query(
    'UPDATE project SET access_revision = $2 WHERE project_id = $1 AND access_revision <= $2',
    [projectId, access.revision],
  );
  if (rowCount === 1) await writeRules(session, projectId, access);
}

async function writeRules(session: Session, projectId: string, { rules }: AccessRules) {
  await session.query('DELETE FROM network_rule WHERE project_id = $1', [projectId]);
  await session.query(
    `INSERT INTO network_rule (project_id, branch_id, cidr)
     SELECT $1, rule.branch_id, rule.cidr FROM unnest($2::uuid[], $3::cidr[]) AS rule (branch_id, cidr)`,
    [projectId, rules.map(({ branch_id }) => branch_id), rules.map(({ cidr }) => cidr)],
  );
}

/** Every branch that has logins, with the networks that its project's rules and its own let in. */
export async function readAccess(db: Queryable): Promise<BranchAccess[]> {
  const { rows } = await db.query<BranchAccess>(
    `SELECT branch.database,
            (SELECT jsonb_object_agg(login, verifier) FROM login WHERE login.branch_id = branch.branch_id) AS verifiers,
            ARRAY (
              SELECT DISTINCT rule.cidr::text FROM network_rule AS rule
              WHERE rule.project_id = branch.project_id
                AND (rule.branch_id IS NULL OR rule.branch_id = branch.branch_id)
              ORDER BY 1
            ) AS cidrs
     FROM branch
     WHERE EXISTS (SELECT FROM login WHERE login.branch_id = branch.branch_id)
     ORDER BY branch.database`,
  );
  return rows;
}
