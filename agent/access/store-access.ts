import { type BranchRole, loginName, queryLoginName } from '../../shared/branch/login.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import { inTransaction, type Queryable, type Session } from '../postgres/connect.ts';
import { canonicalNetwork, type NetworkChange } from './networks.ts';
import type { BranchAccess, MoverAccess, Network } from './rule-files.ts';

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
  await storeSettings(session, projectId, access.settings, before.newer);
  // A repeated revision has the same passwords, whose sessions were ended the first time. Its rules may be
  // stale: they may name branches that have been dropped since.
  let ruleRemoved = false;
  if (before.newer) {
    ruleRemoved = await storeRules(session, 'network_rule', projectId, access.rules);
    await storeRules(session, 'sql_rule', projectId, access.sql_rules);
    await storeVerifiers(session, access.verifiers);
    await storeSpares(session, projectId, access.spares);
  }
  if ((before.blocked_from !== null) !== access.write_blocked || before.durability !== access.durability)
    await session.query(
      'UPDATE login SET stale = true FROM branch WHERE branch.branch_id = login.branch_id AND project_id = $1',
      [projectId],
    );
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
       SELECT FROM login JOIN branch USING (branch_id)
       WHERE project_id = $1 AND end_from IS NOT NULL))`,
    [projectId, ruleRemoved],
  );
}

/** @returns whether a rule was removed */
async function storeRules(
  session: Session,
  table: 'network_rule' | 'sql_rule',
  projectId: string,
  rules: Access['rules'],
): Promise<boolean> {
  const values = [projectId, rules.map(({ branch_id }) => branch_id), rules.map(({ cidr }) => cidr)];
  const wanted = 'SELECT branch_id, cidr FROM unnest($2::uuid[], $3::cidr[]) AS rule (branch_id, cidr)';
  const stored = `SELECT branch_id, cidr FROM ${table} WHERE project_id = $1`;
  const { rowCount } = await session.query(
    `DELETE FROM ${table} AS rule USING (${stored} EXCEPT ${wanted}) AS gone
     WHERE project_id = $1 AND rule.cidr = gone.cidr AND rule.branch_id IS NOT DISTINCT FROM gone.branch_id`,
    values,
  );
  await session.query(
    `INSERT INTO ${table} (project_id, branch_id, cidr)
     SELECT $1, branch_id, cidr FROM (${wanted} EXCEPT ${stored}) AS rule`,
    values,
  );
  return rowCount !== 0;
}

async function storeClosures(session: Session, projectId: string, closed: string[]) {
  await session.query(
    `WITH opened AS (
       UPDATE branch SET closed = false
       WHERE project_id = $1 AND closed AND branch_id <> ALL ($2::uuid[])
       RETURNING branch_id
     ), closed AS (
       UPDATE branch SET closed = true
       WHERE branch_id = ANY ($2::uuid[]) AND project_id = $1 AND NOT closed
       RETURNING branch_id
     ), changed AS (
       SELECT branch_id, false AS closed FROM opened UNION ALL SELECT branch_id, true FROM closed
     )
     UPDATE login SET stale = true, end_from = CASE WHEN closed THEN '-infinity' ELSE end_from END
     FROM changed WHERE changed.branch_id = login.branch_id`,
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
     WHERE branch_id IN (
         SELECT key::uuid FROM jsonb_object_keys($2::jsonb) AS key
         UNION ALL
         SELECT branch_id FROM branch WHERE $3 AND project_id = $1 AND connection_attempts IS NOT NULL)
       AND project_id = $1
       AND connection_attempts IS DISTINCT FROM ($2::jsonb ->> branch_id::text)::integer`,
    [projectId, JSON.stringify(limits), isWhole],
  );
}

/** @param isWhole as for `storeAttempts` */
async function storeSettings(
  session: Session,
  projectId: string,
  settings: Access['settings'],
  isWhole: boolean,
) {
  await session.query(
    `UPDATE branch SET settings = $2::jsonb -> branch_id::text, settings_stale = true
     WHERE branch_id IN (
         SELECT key::uuid FROM jsonb_object_keys($2::jsonb) AS key
         UNION ALL
         SELECT branch_id FROM branch WHERE $3 AND project_id = $1 AND settings IS NOT NULL)
       AND project_id = $1 AND settings IS DISTINCT FROM $2::jsonb -> branch_id::text`,
    [projectId, JSON.stringify(settings), isWhole],
  );
}

async function storeSpares(session: Session, projectId: string, spares: Access['spares']) {
  await session.query('UPDATE project SET spares = $2 WHERE project_id = $1', [projectId, spares.of_project]);
  await session.query(
    `UPDATE snapshot SET spares = ($2::jsonb ->> snapshot_id::text)::integer
     WHERE snapshot_id IN (
         SELECT key::uuid FROM jsonb_object_keys($2::jsonb) AS key
         UNION ALL
         SELECT snapshot_id FROM snapshot WHERE project_id = $1 AND spares IS NOT NULL)
       AND project_id = $1 AND spares IS DISTINCT FROM ($2::jsonb ->> snapshot_id::text)::integer`,
    [projectId, JSON.stringify(spares.of_snapshots)],
  );
}

async function storeVerifiers(session: Session, verifiers: Access['verifiers']) {
  for (const [branchId, ofBranch] of Object.entries(verifiers)) {
    for (const [role, verifier] of Object.entries(ofBranch)) {
      await session.query(
        `UPDATE login SET verifier = $2, end_from = '-infinity', stale = true WHERE login = $1`,
        [loginName(branchId, role as BranchRole), verifier],
      );
    }
    // A viewer's statement ends with the password that the viewer may have lost. The other logins may be broken.
    await session.query(
      `UPDATE login SET stale = true, end_from = CASE WHEN login = $2 THEN '-infinity' ELSE end_from END
       WHERE branch_id = $1`,
      [branchId, queryLoginName(branchId)],
    );
  }
}

/** The access to a branch, with its limit of connection attempts; null: the default. */
export type LimitedAccess = BranchAccess & {
  branch_id: string;
  project_id: string;
  connection_attempts: number | null;
};

/**
 * Branches that are not closed, with the networks that their project's rules and their own rules admit.
 * @param ids of branches, and of projects for all of their branches; null: all of the host
 */
export async function readAccess(
  db: Queryable,
  ids: readonly string[] | null = null,
): Promise<LimitedAccess[]> {
  const of =
    ids && 'SELECT unnest($1::uuid[]) UNION SELECT branch_id FROM branch WHERE project_id = ANY ($1)';
  const { rows } = await db.query<LimitedAccess>(
    `SELECT branch_id, project_id, connection_attempts, database, verifiers, coalesce(cidrs, '{}') AS cidrs
     FROM branch CROSS JOIN LATERAL (
       SELECT jsonb_object_agg(login, verifier) AS verifiers FROM login
       WHERE login.branch_id = branch.branch_id AND verifier IS NOT NULL
     ) AS logins CROSS JOIN LATERAL (
       SELECT array_agg(DISTINCT cidr ORDER BY cidr) AS cidrs FROM (
         SELECT cidr::text FROM network_rule AS rule
         WHERE rule.project_id = branch.project_id AND rule.branch_id IS NULL
         UNION ALL
         SELECT cidr::text FROM network_rule AS rule
         WHERE rule.project_id = branch.project_id AND rule.branch_id = branch.branch_id
       ) AS rule
     ) AS networks
     WHERE NOT closed AND verifiers IS NOT NULL ${of ? `AND branch_id IN (${of})` : ''}`,
    ids ? [ids] : [],
  );
  return rows.map((row) => ({ ...row, cidrs: row.cidrs.map(canonicalNetwork) }));
}

/** Beginning of what a process has not read yet: the transactions that its last read did not see. */
interface Read {
  snapshot: string;
  /** Milliseconds of `performance.now()`. */
  at: number;
}

/** Records are kept for longer than this, so whoever has read within it misses none. */
const CURRENT_FOR_MS = 10 * 60_000;
const KEPT_FOR = '1 hour';

/** The access of the host as the tables have it. Each read takes what has changed since the one before, by any process. */
export class KnownAccess {
  readonly #branches = new Map<string, LimitedAccess>();
  readonly #networks = new Map<string, Network>();
  #read: Read | null = null;

  /** The next read takes all. */
  forget(): void {
    this.#read = null;
  }

  of(branchId: string): LimitedAccess | undefined {
    return this.#branches.get(branchId);
  }

  /** Ordered by database. */
  get branches(): LimitedAccess[] {
    return [...this.#branches.values()].sort((one, other) => (one.database < other.database ? -1 : 1));
  }

  /** Ordered by role. */
  get networks(): Network[] {
    return [...this.#networks.values()].sort((one, other) => (one.role < other.role ? -1 : 1));
  }

  /** @returns ids of what has changed: of branches, and of projects for all of their branches; null: anything */
  async read(session: Session): Promise<string[] | null> {
    const last = this.#read && performance.now() - this.#read.at < CURRENT_FOR_MS ? this.#read : null;
    const at = performance.now();
    // One snapshot for all statements: access that is newer than the changes would be known before its networks are made,
    // and the read after that would find nothing new.
    const [snapshot, changed] = await inTransaction(session, async () => {
      await session.query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY');
      const { rows } = await session.query<{ snapshot: string; ids: string[] }>(
        `SELECT pg_current_snapshot()::text AS snapshot, ARRAY (
           SELECT DISTINCT id FROM access_change
           WHERE xid >= pg_snapshot_xmin($1::pg_snapshot) AND NOT pg_visible_in_snapshot(xid, $1::pg_snapshot)
         ) AS ids`,
        [last?.snapshot ?? null],
      );
      const [{ snapshot, ids }] = rows as [(typeof rows)[number]];
      const changed = last && ids;
      if (changed === null || changed.length > 0) await this.#readChanged(session, changed);
      return [snapshot, changed] as const;
    });
    this.#read = { snapshot, at };
    return changed;
  }

  async #readChanged(db: Queryable, ids: readonly string[] | null): Promise<void> {
    const branches = await readAccess(db, ids);
    const networks = await readNetworks(db, ids);
    const changed = ids && new Set(ids);
    for (const { branch_id, project_id } of this.#branches.values())
      if (!changed || changed.has(branch_id) || changed.has(project_id)) this.#branches.delete(branch_id);
    for (const branch of branches) this.#branches.set(branch.branch_id, branch);
    if (!ids) this.#networks.clear();
    this.changeNetworks({ added: networks, removed: (ids ?? []).map(networkRole) });
  }

  /** Takes a change that this process has committed. */
  changeNetworks({ added, removed }: NetworkChange): void {
    for (const role of removed) this.#networks.delete(role);
    for (const network of added) this.#networks.set(network.role, network);
  }
}

/** Removes the records that every process has read. */
export const forgetAccessChanges = (db: Queryable) =>
  db.query(`DELETE FROM access_change WHERE changed_at < clock_timestamp() - interval '${KEPT_FOR}'`);

const networkRole = (id: string) => `net_${id.replaceAll('-', '')}`;

/** @param ids digits of their roles; null: all of the host */
async function readNetworks(db: Queryable, ids: readonly string[] | null): Promise<Network[]> {
  const { rows } = await db.query<Network>(
    `SELECT role, cidr::text FROM network ${ids ? 'WHERE role = ANY ($1)' : ''}`,
    ids ? [ids.map(networkRole)] : [],
  );
  return rows.map(({ role, cidr }) => ({ role, cidr: canonicalNetwork(cidr) }));
}

/** The logins of other hosts, to which projects move, with the databases of their projects. */
export async function readMovers(db: Queryable): Promise<MoverAccess[]> {
  const { rows } = await db.query<MoverAccess>(
    `SELECT login, cidrs::text[] AS cidrs, ARRAY (
       SELECT branch.database FROM branch WHERE branch.project_id = mover.project_id ORDER BY 1
     ) AS databases
     FROM mover ORDER BY login`,
  );
  return rows.map((row) => ({ ...row, cidrs: row.cidrs.map(canonicalNetwork) }));
}

/** The networks of all rules that open SQL over HTTP and WebSocket alone. */
export async function readSqlNetworks(db: Queryable): Promise<string[]> {
  const { rows } = await db.query<{ cidr: string }>('SELECT DISTINCT cidr::text FROM sql_rule');
  return rows.map(({ cidr }) => canonicalNetwork(cidr));
}
