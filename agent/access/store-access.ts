import { type BranchRole, loginName, queryLoginName } from '../../shared/branch/login.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import type { Queryable, Session } from '../postgres/connect.ts';
import { canonicalNetwork } from './networks.ts';
import type { BranchAccess, MoverAccess } from './rule-files.ts';

type Access = Params<'access.apply'>['access'];

/** Stores the access of a project that may be new to this host. Must be called in a transaction. */
export async function introduceProject(session: Session, projectId: string, access: Access): Promise<void> {
  const { rowCount } = await session.query(
    'INSERT INTO project (project_id, access_revision, durability) VALUES ($1, -1, $2) ON CONFLICT DO NOTHING',
    [projectId, access.durability],
  );
  await storeAccess(session, projectId, access);
  // A new project has no sessions to end.
  if (rowCount === 1)
    await session.query('UPDATE project SET unenforced = false WHERE project_id = $1', [projectId]);
}

/** The access that was stored before. */
interface Before {
  newer: boolean;
  blocked_from: Date | null;
  durability: Access['durability'];
}

/**
 * Stores the wanted access, unless a newer revision is stored already, because calls may arrive out of order.
 * Does nothing for a project that this host does not hold. Must be called in a transaction, before
 * `enforceAccess`.
 */
export async function storeAccess(session: Session, projectId: string, access: Access): Promise<void> {
  const { rows } = await session.query<Before>(
    `UPDATE project SET
       access_revision = $2,
       tenant = coalesce($4, tenant),
       durability = $5,
       write_blocked_since = CASE WHEN $3 THEN coalesce(write_blocked_since, clock_timestamp()) END
     WHERE project_id = $1 AND access_revision <= $2
     RETURNING old.access_revision < $2 AS newer, old.write_blocked_since AS blocked_from, old.durability`,
    [projectId, access.revision, access.write_blocked, access.tenant, access.durability],
  );
  const [before] = rows;
  if (!before) return;
  await storeClosures(session, projectId, access.closed);
  await storeAttempts(session, projectId, access.connection_attempts, before.newer);
  // A repeated revision has the same passwords, whose sessions were ended the first time. Its rules may be
  // stale: they may name branches that have been dropped since.
  let ruleRemoved = false;
  if (before.newer) {
    ruleRemoved = await storeRules(session, projectId, access.rules);
    await storeVerifiers(session, access.verifiers);
    await storeSpares(session, projectId, access.spares);
  }
  if (before.blocked_from && !access.write_blocked) {
    // A session that began during the block stays read-only, so it has to reconnect.
    await session.query(
      `UPDATE login SET end_from = least(end_from, $2)
       FROM branch WHERE branch.branch_id = login.branch_id AND project_id = $1 AND login !~ '_owner$'`,
      [projectId, before.blocked_from],
    );
  }
  // A session has the durability of its login, so open ones begin again. Pooled clients stay connected.
  if (before.durability !== access.durability)
    await session.query(
      `UPDATE login SET end_from = least(end_from, 'epoch')
       FROM branch WHERE branch.branch_id = login.branch_id AND project_id = $1`,
      [projectId],
    );
  // Access that only admits more, such as a new branch's, leaves no session to end.
  await session.query(
    `UPDATE project SET unenforced = true
     WHERE project_id = $1 AND ($2 OR EXISTS (
       SELECT FROM login JOIN branch USING (branch_id) WHERE project_id = $1 AND end_from IS NOT NULL))`,
    [projectId, ruleRemoved],
  );
}

/** @returns whether a rule was removed */
async function storeRules(session: Session, projectId: string, rules: Access['rules']): Promise<boolean> {
  const values = [projectId, rules.map(({ branch_id }) => branch_id), rules.map(({ cidr }) => cidr)];
  const wanted = 'SELECT branch_id, cidr FROM unnest($2::uuid[], $3::cidr[]) AS rule (branch_id, cidr)';
  const stored = 'SELECT branch_id, cidr FROM network_rule WHERE project_id = $1';
  const { rowCount } = await session.query(
    `DELETE FROM network_rule AS rule USING (${stored} EXCEPT ${wanted}) AS gone
     WHERE project_id = $1 AND rule.cidr = gone.cidr AND rule.branch_id IS NOT DISTINCT FROM gone.branch_id`,
    values,
  );
  await session.query(
    `INSERT INTO network_rule (project_id, branch_id, cidr)
     SELECT $1, branch_id, cidr FROM (${wanted} EXCEPT ${stored}) AS rule`,
    values,
  );
  return rowCount !== 0;
}

async function storeClosures(session: Session, projectId: string, closed: string[]) {
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

/** @param isWhole a branch without a limit has the default; otherwise it may be newer than the call */
async function storeAttempts(
  session: Session,
  projectId: string,
  limits: Access['connection_attempts'],
  isWhole: boolean,
) {
  await session.query(
    `UPDATE branch SET connection_attempts = ($2::jsonb ->> branch_id::text)::integer
     WHERE project_id = $1 AND ($3 OR $2::jsonb ? branch_id::text)
       AND connection_attempts IS DISTINCT FROM ($2::jsonb ->> branch_id::text)::integer`,
    [projectId, JSON.stringify(limits), isWhole],
  );
}

async function storeSpares(session: Session, projectId: string, spares: Access['spares']) {
  await session.query('UPDATE project SET spares = $2 WHERE project_id = $1', [projectId, spares.of_project]);
  await session.query(
    `UPDATE snapshot SET spares = ($2::jsonb ->> snapshot_id::text)::integer
     WHERE project_id = $1 AND spares IS DISTINCT FROM ($2::jsonb ->> snapshot_id::text)::integer`,
    [projectId, JSON.stringify(spares.of_snapshots)],
  );
}

async function storeVerifiers(session: Session, verifiers: Access['verifiers']) {
  for (const [branchId, ofBranch] of Object.entries(verifiers)) {
    for (const [role, verifier] of Object.entries(ofBranch)) {
      await session.query(`UPDATE login SET verifier = $2, end_from = '-infinity' WHERE login = $1`, [
        loginName(branchId, role as BranchRole),
        verifier,
      ]);
    }
    // A viewer's statement ends with the password that the viewer may have lost.
    await session.query(`UPDATE login SET end_from = '-infinity' WHERE login = $1`, [
      queryLoginName(branchId),
    ]);
  }
}

/** The access to a branch, with its limit of connection attempts; null: the default. */
export type LimitedAccess = BranchAccess & { branch_id: string; connection_attempts: number | null };

/** Every branch that is not closed, with the networks that its project's rules and its own rules admit. */
export async function readAccess(db: Queryable): Promise<LimitedAccess[]> {
  const { rows } = await db.query<LimitedAccess>(
    `WITH logins AS (
       SELECT branch_id, jsonb_object_agg(login, verifier) AS verifiers FROM login
       WHERE verifier IS NOT NULL GROUP BY branch_id
     ), networks AS (
       SELECT branch.branch_id, array_agg(DISTINCT rule.cidr::text ORDER BY rule.cidr::text) AS cidrs
       FROM branch JOIN network_rule AS rule USING (project_id)
       WHERE rule.branch_id IS NULL OR rule.branch_id = branch.branch_id
       GROUP BY branch.branch_id
     )
     SELECT branch_id, connection_attempts, database, verifiers, coalesce(cidrs, '{}') AS cidrs
     FROM branch JOIN logins USING (branch_id) LEFT JOIN networks USING (branch_id)
     WHERE NOT closed ORDER BY database`,
  );
  return rows.map((row) => ({ ...row, cidrs: row.cidrs.map(canonicalNetwork) }));
}

/** The logins of other hosts, to which projects move, with the databases of their projects. */
export async function readMovers(db: Queryable): Promise<MoverAccess[]> {
  const { rows } = await db.query<MoverAccess>(
    `SELECT login, cidrs::text[] AS cidrs, array_agg(branch.database ORDER BY branch.database) AS databases
     FROM mover JOIN branch USING (project_id) GROUP BY login ORDER BY login`,
  );
  return rows.map((row) => ({ ...row, cidrs: row.cidrs.map(canonicalNetwork) }));
}
