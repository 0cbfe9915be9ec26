import { type BranchRole, loginName } from '../../shared/branch/login.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import type { Queryable, Session } from '../postgres/connect.ts';
import type { BranchAccess } from './rule-files.ts';

type Access = Params<'access.apply'>['access'];

/** Keeps the access of a project that may be new to this host. To be called in a transaction. */
export async function introduceProject(session: Session, projectId: string, access: Access): Promise<void> {
  const { rowCount } = await session.query(
    'INSERT INTO project (project_id, access_revision) VALUES ($1, -1) ON CONFLICT DO NOTHING',
    [projectId],
  );
  await storeAccess(session, projectId, access);
  // Nobody has been in the databases of a new project.
  if (rowCount === 1)
    await session.query('UPDATE project SET unenforced = false WHERE project_id = $1', [projectId]);
}

/**
 * Notes the access as it is wanted, unless a newer one is known: calls may overtake each other. A project that
 * the host does not have has nobody to let in. To be called in a transaction; `enforceAccess` comes after it.
 */
export async function storeAccess(session: Session, projectId: string, access: Access): Promise<void> {
  const { rows } = await session.query<{ newer: boolean; blocked_from: Date | null }>(
    `UPDATE project SET
       access_revision = $2,
       write_blocked_since = CASE WHEN $3 THEN coalesce(write_blocked_since, clock_timestamp()) END
     WHERE project_id = $1 AND access_revision <= $2
     RETURNING old.access_revision < $2 AS newer, old.write_blocked_since AS blocked_from`,
    [projectId, access.revision, access.write_blocked],
  );
  const [before] = rows;
  if (!before) return;
  await keepClosures(session, projectId, access.closed);
  // The same revision again brings the same passwords: what was ended for them once is not ended again. Of the rules it
  // may bring more: those of branches that have been dropped since.
  let shutOut = false;
  if (before.newer) {
    shutOut = await keepRules(session, projectId, access.rules);
    await keepVerifiers(session, access.verifiers);
  }
  if (before.blocked_from && !access.write_blocked) {
    // What a read-write session began with in the time of the block, it keeps: transactions that only read.
    await session.query(
      `UPDATE login SET end_from = least(end_from, $2)
       FROM branch WHERE branch.branch_id = login.branch_id AND project_id = $1 AND login ~ '_rw$'`,
      [projectId, before.blocked_from],
    );
  }
  // An access that only lets in more, as a new branch's does, leaves no session to look for.
  await session.query(
    `UPDATE project SET unenforced = true
     WHERE project_id = $1 AND ($2 OR EXISTS (
       SELECT FROM login JOIN branch USING (branch_id) WHERE project_id = $1 AND end_from IS NOT NULL))`,
    [projectId, shutOut],
  );
}

/** @returns whether there was a rule that is gone */
async function keepRules(session: Session, projectId: string, rules: Access['rules']): Promise<boolean> {
  const values = [projectId, rules.map(({ branch_id }) => branch_id), rules.map(({ cidr }) => cidr)];
  const wanted = 'SELECT branch_id, cidr FROM unnest($2::uuid[], $3::cidr[]) AS rule (branch_id, cidr)';
  const noted = 'SELECT branch_id, cidr FROM network_rule WHERE project_id = $1';
  const { rowCount } = await session.query(
    `DELETE FROM network_rule AS rule USING (${noted} EXCEPT ${wanted}) AS gone
     WHERE project_id = $1 AND rule.cidr = gone.cidr AND rule.branch_id IS NOT DISTINCT FROM gone.branch_id`,
    values,
  );
  await session.query(
    `INSERT INTO network_rule (project_id, branch_id, cidr)
     SELECT $1, branch_id, cidr FROM (${wanted} EXCEPT ${noted}) AS rule`,
    values,
  );
  return rowCount !== 0;
}

async function keepClosures(session: Session, projectId: string, closed: string[]) {
  await session.query(
    `WITH changed AS (
       UPDATE branch SET closed = NOT closed
       WHERE project_id = $1 AND closed <> (branch_id = ANY ($2::uuid[]))
       RETURNING branch_id, closed
     )
     UPDATE login SET end_from = '-infinity'
     FROM changed WHERE changed.branch_id = login.branch_id AND changed.closed`,
    [projectId, closed],
  );
}

async function keepVerifiers(session: Session, verifiers: Access['verifiers']) {
  for (const [branchId, ofBranch] of Object.entries(verifiers)) {
    for (const [role, verifier] of Object.entries(ofBranch)) {
      await session.query(`UPDATE login SET verifier = $2, end_from = '-infinity' WHERE login = $1`, [
        loginName(branchId, role as BranchRole),
        verifier,
      ]);
    }
  }
}

/** Every branch that is open to its logins, with the networks that its project's rules and its own let in. */
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
     WHERE NOT closed AND EXISTS (SELECT FROM login WHERE login.branch_id = branch.branch_id)
     ORDER BY branch.database`,
  );
  return rows;
}
