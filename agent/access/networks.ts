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

/**
 * Makes a role for each new network of a project, and forgets networks that no rule names any more. That
 * costs a reload, so they are kept until there is one anyway. To be called in a transaction.
 * @param prune whether PostgreSQL reloads its configuration in any case
 * @returns also the projects with new networks
 */
export async function ensureNetworks(
  session: Session,
  prune: boolean,
): Promise<{ networks: Network[]; projects: string[] }> {
  const { rows: added } = await session.query<{ project_id: string }>(
    `INSERT INTO network (role, project_id, cidr)
     SELECT 'net_' || replace(gen_random_uuid()::text, '-', ''), project_id, cidr
     FROM (SELECT project_id, cidr FROM network_rule EXCEPT SELECT project_id, cidr FROM network) AS rule
     ON CONFLICT (project_id, cidr) DO NOTHING RETURNING project_id`,
  );
  if (prune || added.length > 0)
    await session.query(
      `DELETE FROM network WHERE NOT EXISTS (
         SELECT FROM network_rule AS rule WHERE rule.project_id = network.project_id AND rule.cidr = network.cidr)`,
    );
  const { rows } = await session.query<Network & { exists: boolean }>(
    `SELECT role, cidr::text, pg_roles.oid IS NOT NULL AS exists
     FROM network LEFT JOIN pg_roles ON rolname = role ORDER BY role`,
  );
  for (const { role } of rows.filter(({ exists }) => !exists))
    await session.query(`CREATE ROLE ${identifier(role)} NOLOGIN`);
  return {
    networks: rows.map(({ role, cidr }) => ({ role, cidr: canonicalNetwork(cidr) })),
    projects: added.map(({ project_id }) => project_id),
  };
}

/** What is compared: the logins of these branches, and of all branches of these projects. */
export interface Scope {
  branches: readonly string[];
  projects: readonly string[];
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
 * @param scope null: all branches, which takes long on a host with many. Otherwise the logins are found first
 *   and what they are members of next, whatever PostgreSQL's statistics say.
 */
export async function readDifferences(
  db: Queryable,
  blocks: readonly Block[],
  scope: Scope | null = null,
): Promise<Difference[]> {
  const { rows } = await db.query<Difference>(
    `WITH scope AS MATERIALIZED (
       SELECT unnest($3::text[]) AS login
       UNION SELECT login FROM login JOIN branch USING (branch_id) WHERE project_id = ANY ($4::uuid[])
     ), person AS MATERIALIZED (
       SELECT oid, rolname::text COLLATE "default" AS login
       FROM pg_authid ${scope ? 'JOIN scope ON scope.login = rolname' : ''}
     ), wanted AS (
       SELECT network.role, person.login
       FROM person JOIN login USING (login) JOIN branch USING (branch_id)
       JOIN network_rule AS rule ON rule.project_id = branch.project_id
         AND (rule.branch_id IS NULL OR rule.branch_id = branch.branch_id)
       JOIN network ON network.project_id = rule.project_id AND network.cidr = rule.cidr
       -- The query login connects from no network.
       WHERE NOT closed AND verifier IS NOT NULL AND NOT EXISTS (
         SELECT FROM unnest($1::uuid[], $2::cidr[]) AS block (branch_id, address)
         WHERE block.branch_id = branch.branch_id AND (address IS NULL OR rule.cidr <<= address))
     ), membership AS MATERIALIZED (
       SELECT login, roleid, NOT (admin_option OR inherit_option OR set_option) AS plain
       FROM person JOIN pg_auth_members ON member = person.oid
     ), present AS (
       SELECT rolname::text COLLATE "default" AS role, login, plain
       FROM membership JOIN pg_authid ON pg_authid.oid = roleid AND starts_with(rolname::text, 'net_')
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
      scope?.branches.flatMap((id) => BRANCH_ROLES.map((role) => loginName(id, role))) ?? [],
      scope?.projects ?? [],
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
export interface MembersVersion {
  version: string;
}

/**
 * Makes exactly those logins members of the networks that the tables admit, in one transaction. It is in
 * effect for every login that begins afterwards.
 * @param known which branches may differ since that version; all if another process has changed members, or
 *   if it is null
 * @param prepare runs first, in the same transaction, and names projects that may differ too
 */
async function admitLogins<T extends Pick<Scope, 'projects'>>(
  session: Session,
  blocks: readonly Block[],
  known: (MembersVersion & Pick<Scope, 'branches'>) | null,
  prepare: () => Promise<T>,
): Promise<T & MembersVersion> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await inTransaction(session, async () => {
        await session.query(`SET LOCAL lock_timeout = ${LOCKED_FOR_MS}`);
        const version = await lockVersion(session);
        const prepared = await prepare();
        const isCurrent = known !== null && known.version === version;
        const scope = isCurrent ? { branches: known.branches, projects: prepared.projects } : null;
        const differences = await readDifferences(session, blocks, scope);
        if (differences.length === 0) return { ...prepared, version };
        await session.query(differences.map(statement).join('; '));
        const changed = await session.query<MembersVersion>(
          'UPDATE network_members SET version = version + 1 RETURNING version::text',
        );
        return { ...prepared, version: changed.rows[0]?.version ?? '' };
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
  admit<T extends { projects: readonly string[] }>(
    session: Session,
    access: () => WantedAccess,
    prepare: () => Promise<T>,
  ): Promise<T> {
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
        return admitted;
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
