import { BRANCH_ROLES, branchOfLogin, loginName } from '../../shared/branch/login.ts';
import { readCidr } from '../../shared/cidr.ts';
import type { Block } from '../blocks/stored-blocks.ts';
import { identifier, inTransaction, type Queryable, type Session } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import type { BranchAccess, Network } from './rule-files.ts';

const MIXED = /^([0-9a-f:]*:)(\d+)\.(\d+)\.(\d+)\.(\d+)\//;

/**
 * The canonical form of a network of PostgreSQL, which ends some IPv6 networks as an IPv4 address:
 * `::102:304/128` as `::1.2.3.4/128`. The dots are replaced first, because parsers take that for the IPv4
 * address 1.2.3.4.
 */
export function canonicalNetwork(cidr: string): string {
  const group = (high = '', low = '') => (Number(high) * 256 + Number(low)).toString(16);
  const [mixed, start = '', ...bytes] = MIXED.exec(cidr) ?? [''];
  const [a, b, c, d] = bytes;
  const plain = mixed ? `${start}${group(a, b)}:${group(c, d)}/${cidr.slice(mixed.length)}` : cidr;
  const reading = readCidr(plain);
  return reading.ok ? reading.cidr : cidr;
}

/** Neither the right to grant the role, nor the role's rights, nor the right to become it: only admission. */
const ADMITTED = 'ADMIN FALSE, INHERIT FALSE, SET FALSE';

const LOCKED_FOR_MS = 2_000;
/** A login was dropped, or another process changed the same membership, after they were read. */
const CHANGED_MEANWHILE = new Set(['XX000', '40P01', '42704', '23505']);
const TRIES = 3;

export interface NetworkChange {
  added: Network[];
  /** Roles of the removed networks. */
  removed: string[];
}

/**
 * Makes a role for each new network of a project, and forgets networks that no rule names any more. That
 * costs a reload, so they are kept until there is one anyway. To be called in a transaction.
 * @param changed ids of branches and projects whose rules may have changed; null: any. Then PostgreSQL reloads its
 *   configuration in any case
 */
export async function ensureNetworks(
  session: Session,
  changed: readonly string[] | null,
): Promise<NetworkChange> {
  const rules = changed
    ? `SELECT project_id, cidr FROM network_rule WHERE branch_id = ANY ($1)
       UNION SELECT project_id, cidr FROM network_rule WHERE project_id = ANY ($1) AND branch_id IS NULL`
    : 'SELECT DISTINCT project_id, cidr FROM network_rule';
  const { rows: added } = await session.query<Network & { project_id: string }>(
    `INSERT INTO network (role, project_id, cidr)
     SELECT 'net_' || replace(gen_random_uuid()::text, '-', ''), project_id, cidr
     FROM (${rules}) AS rule
     -- A subquery, which is looked up for each rule.
     WHERE (SELECT role FROM network WHERE network.project_id = rule.project_id AND network.cidr = rule.cidr) IS NULL
     ON CONFLICT (project_id, cidr) DO NOTHING RETURNING role, cidr::text, project_id`,
    changed ? [changed] : [],
  );
  const projects = changed && [...new Set(added.map(({ project_id }) => project_id))];
  const removed =
    projects?.length === 0
      ? []
      : (
          await session.query<{ role: string }>(
            `DELETE FROM network WHERE ${projects ? 'project_id = ANY ($1) AND' : ''} NOT EXISTS (
               SELECT FROM network_rule AS rule
               WHERE rule.project_id = network.project_id AND rule.cidr = network.cidr) RETURNING role`,
            projects ? [projects] : [],
          )
        ).rows;
  const roles = changed ? added : await readRoleless(session);
  for (const { role } of roles) await session.query(`CREATE ROLE ${identifier(role)} NOLOGIN`);
  return {
    added: added.map(({ role, cidr }) => ({ role, cidr: canonicalNetwork(cidr) })),
    removed: removed.map(({ role }) => role),
  };
}

/** Networks of any project without their role, the new ones among them. */
async function readRoleless(session: Session): Promise<{ role: string }[]> {
  const { rows } = await session.query<{ role: string }>(
    'SELECT role FROM network WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) ORDER BY role',
  );
  return rows;
}

interface Difference {
  role: string;
  /** Whether the logins have to become members, or must not be any more. */
  joins: boolean;
  logins: string[];
}

/**
 * Where the members of the networks differ from the rules of branches that are not closed, without what the
 * blocks cover.
 * @param branches null: all, which takes long on a host with many. Otherwise their logins are found first
 *   and what they are members of next, whatever PostgreSQL's statistics say.
 */
export async function readDifferences(
  db: Queryable,
  blocks: readonly Block[],
  branches: readonly string[] | null = null,
): Promise<Difference[]> {
  const { rows } = await db.query<Difference>(
    `WITH person AS MATERIALIZED (
       SELECT oid, rolname::text COLLATE "default" AS login
       FROM pg_authid ${branches ? 'WHERE rolname = ANY ($3)' : ''}
     ), wanted AS (
       SELECT network.role, person.login
       FROM person JOIN login USING (login) JOIN branch USING (branch_id)
       CROSS JOIN LATERAL (
         SELECT cidr FROM network_rule AS rule
         WHERE rule.project_id = branch.project_id AND rule.branch_id IS NULL
         UNION ALL
         SELECT cidr FROM network_rule AS rule
         WHERE rule.project_id = branch.project_id AND rule.branch_id = branch.branch_id
       ) AS rule
       JOIN network ON network.project_id = branch.project_id AND network.cidr = rule.cidr
       -- The query login connects from no network.
       WHERE NOT closed AND verifier IS NOT NULL AND NOT EXISTS (
         SELECT FROM unnest($1::uuid[], $2::cidr[]) AS block (branch_id, address)
         WHERE block.branch_id = branch.branch_id AND (address IS NULL OR rule.cidr <<= address))
     ), membership AS MATERIALIZED (
       -- A subquery, which is looked up for each membership.
       SELECT login, (SELECT rolname::text COLLATE "default" FROM pg_authid WHERE pg_authid.oid = roleid) AS role,
         NOT (admin_option OR inherit_option OR set_option) AS plain
       FROM person JOIN pg_auth_members ON member = person.oid
     ), present AS (
       SELECT role, login, plain FROM membership WHERE starts_with(role, 'net_')
     )
     SELECT role, joins, array_agg(login ORDER BY login) AS logins
     FROM (
       (SELECT role, login, true AS joins FROM wanted EXCEPT SELECT role, login, true FROM present WHERE plain)
       UNION ALL
       (SELECT role, login, false FROM present EXCEPT SELECT role, login, false FROM wanted)
     ) AS difference
     GROUP BY role, joins ORDER BY role, joins`,
    [
      blocks.map(({ branch_id }) => branch_id),
      blocks.map(({ address }) => address),
      ...(branches ? [branches.flatMap((id) => BRANCH_ROLES.map((role) => loginName(id, role)))] : []),
    ],
  );
  return rows;
}

const statement = ({ role, joins, logins }: Difference) => {
  const names = logins.map(identifier).join(', ');
  return joins
    ? `GRANT ${identifier(role)} TO ${names} WITH ${ADMITTED}`
    : `REVOKE ${identifier(role)} FROM ${names}`;
};

/** The state of the members after a transaction. */
interface MembersVersion {
  version: string;
}

/**
 * Makes exactly those logins members of the networks that the tables admit, in one transaction. It is in
 * effect for every login that begins afterwards.
 * @param known which branches may differ since that version; all if another process has changed members, or
 *   if it is null
 * @param prepare runs first, in the same transaction
 */
async function admitLogins<T>(
  session: Session,
  blocks: readonly Block[],
  known: (MembersVersion & { branches: readonly string[] }) | null,
  prepare: () => Promise<T>,
): Promise<MembersVersion & { prepared: T }> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await inTransaction(session, async () => {
        await session.query(`SET LOCAL lock_timeout = ${LOCKED_FOR_MS}`);
        const version = await lockVersion(session);
        const prepared = await prepare();
        const isCurrent = known !== null && known.version === version;
        const differences = await readDifferences(session, blocks, isCurrent ? known.branches : null);
        if (differences.length === 0) return { prepared, version };
        await session.query(differences.map(statement).join('; '));
        const changed = await session.query<MembersVersion>(
          'UPDATE network_members SET version = version + 1 RETURNING version::text',
        );
        return { prepared, version: changed.rows[0]?.version ?? '' };
      });
    } catch (error) {
      if (tries === TRIES || !CHANGED_MEANWHILE.has(sqlState(error) ?? '')) throw error;
    }
  }
}

/** The version as it stays until the end of the transaction. */
async function lockVersion(session: Session): Promise<string> {
  const { rows } = await session.query<MembersVersion>(
    'SELECT version::text FROM network_members FOR UPDATE',
  );
  return rows[0]?.version ?? '';
}

interface WantedAccess {
  branches: readonly BranchAccess[];
  blocks: readonly Block[];
}

/**
 * Makes the logins members of the networks that may use them, and compares only branches whose access has
 * changed.
 */
export class NetworkMembers {
  /** What the members follow, by branch; null: they may differ anywhere. */
  #admitted: (MembersVersion & { access: Map<string, string> }) | null = null;
  #running: Promise<unknown> = Promise.resolve();

  /**
   * Runs one transaction at a time, which reads the access when it begins: otherwise one that began before a
   * block could admit the blocked client again.
   */
  admit<T>(session: Session, access: () => WantedAccess, prepare: () => Promise<T>): Promise<T> {
    const running = this.#running
      .catch(() => {})
      .then(async () => {
        const { branches, blocks } = access();
        const wanted = admissionsOf(branches, blocks);
        const former = this.#admitted;
        this.#admitted = null;
        const known = former && { version: former.version, branches: differing(former.access, wanted) };
        const admitted = await admitLogins(session, blocks, known, prepare);
        this.#admitted = { version: admitted.version, access: wanted };
        return admitted.prepared;
      });
    this.#running = running;
    return running;
  }
}

/** By branch: from where its logins are admitted, and what is blocked. */
function admissionsOf(branches: readonly BranchAccess[], blocks: readonly Block[]): Map<string, string> {
  const blocked = Map.groupBy(blocks, ({ branch_id }) => branch_id);
  return new Map(
    branches.flatMap(({ verifiers, cidrs }) => {
      const [login] = Object.keys(verifiers);
      if (login === undefined) return [];
      const id = branchOfLogin(login);
      const addresses = (blocked.get(id) ?? []).map(({ address }) => address ?? '*');
      return [[id, [Object.keys(verifiers), cidrs, addresses.sort()].join(' ')] as const];
    }),
  );
}

const differing = (one: Map<string, string>, other: Map<string, string>): string[] =>
  [...new Set([...one.keys(), ...other.keys()])].filter((id) => one.get(id) !== other.get(id));
