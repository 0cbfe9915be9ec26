import { renameSync, writeFileSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { MANAGED_DATABASE } from '../../shared/branch/database-name.ts';
import { BRANCH_ROLES, branchOfLogin, loginName } from '../../shared/branch/login.ts';
import { isInNetwork, readCidr } from '../../shared/cidr.ts';
import type { Block } from '../blocks/stored-blocks.ts';
import { AGENT_ADDRESS } from '../postgres/connect.ts';
import { CLIENT_LOGINS, RULE_FILES } from '../servers/configuration.ts';

/** The logins of one branch's database, and the networks they may connect from. */
export interface BranchAccess {
  database: string;
  /** SCRAM-SHA-256 verifiers by login. */
  verifiers: Record<string, string>;
  /** Networks in canonical form. */
  cidrs: string[];
}

/** A network from which a project's branches can be reached, by the logins that are members of its role. */
export interface Network {
  role: string;
  /** In canonical form. */
  cidr: string;
}

/** The login of a standby, and the addresses that it connects from. */
export interface StandbyLogin {
  login: string;
  /** In canonical form. */
  cidrs: string[];
}

export type RuleFileTexts = Record<keyof typeof RULE_FILES, string>;

/** The login with which another host reads the databases of a project. */
export interface MoverAccess {
  login: string;
  databases: string[];
  /** Networks in canonical form. */
  cidrs: string[];
}

/** PostgreSQL as the pooler connects to it for one branch. */
export interface PooledServer {
  socketDir: string;
  port: number;
  /** Connections per login. */
  poolSize: number;
  /** Connections per database. */
  connections: number;
  /** Clients per database; null when the pooler does not know this limit. */
  clients: number | null;
}

const NETWORK_ROLE = /^net_[0-9a-f]{32}$/;
const STANDBY_LOGIN = /^standby_[0-9a-f]{32}$/;
const MOVER = /^mv_[0-9a-f]{32}$/;
const LOGIN = /^u_[0-9a-f]{32}_(owner|rw|ro)$/;
const VERIFIER = /^SCRAM-SHA-256\$[\w+/=$:]+$/;

/**
 * The text of every rule file. Both servers reject any connection that they do not name. PostgreSQL's file
 * names roles, so it changes only with a new network (docs/decisions/network-rules.md). It names no database
 * under construction, to which everybody may connect.
 * @param servesSockets whether the agent logs in for clients over WebSocket
 * @throws Error when a value could break out of its field: PostgreSQL does not start with a malformed line
 */
export function ruleFiles(
  branches: readonly BranchAccess[],
  networks: readonly Network[],
  server: PooledServer,
  standbys: readonly StandbyLogin[] = [],
  movers: readonly MoverAccess[] = [],
  servesSockets = false,
): RuleFileTexts {
  const composed = branches.map(compose);
  networks.forEach(checkNetwork);
  standbys.forEach(checkStandby);
  movers.forEach(checkMover);
  return {
    postgresHba: lines([
      // `replication` admits to the streaming of files and WAL, and to no database.
      ...standbys.flatMap(({ login, cidrs }) =>
        cidrs.map((cidr) => `hostssl replication "${login}" ${cidr} scram-sha-256`),
      ),
      // A login with REPLICATION is admitted to the databases of its project by name, and to no physical replication.
      ...movers.flatMap(({ login, databases, cidrs }) =>
        databases.flatMap((database) =>
          cidrs.map((cidr) => `hostssl "${database}" "${login}" ${cidr} scram-sha-256`),
        ),
      ),
      ...networks.map(({ role, cidr }) => `hostssl /^db_ +${role} ${cidr} scram-sha-256`),
      // The agent decides about each of these clients itself. Nobody else has this address of loopback.
      ...(servesSockets ? [`hostnossl /^db_ ${CLIENT_LOGINS} ${AGENT_ADDRESS}/32 scram-sha-256`] : []),
    ]),
    // The proof of a new branch uses the unix socket, with the password that its clients will use.
    poolerHba: `local all all scram-sha-256\n${composed.map(({ rules }) => rules).join('')}`,
    poolerDatabases: poolerEntries(
      branches.map(({ database }) => database),
      server,
    ),
    poolerUsers: composed.map(({ users }) => users).join(''),
  };
}

/** Lines of one branch. */
interface Composed {
  rules: string;
  users: string;
}

/** Composed rules of each known access: a change concerns few of a host's branches. */
const COMPOSED = new WeakMap<BranchAccess, Composed>();

/** @throws as `ruleFiles` */
function compose(branch: BranchAccess): Composed {
  const known = COMPOSED.get(branch);
  if (known) return known;
  check(branch);
  const { database, verifiers, cidrs } = branch;
  const logins = Object.keys(verifiers).map((login) => `"${login}"`);
  const composed = {
    rules: lines(cidrs.map((cidr) => `hostssl "${database}" ${logins.join(',')} ${cidr} scram-sha-256`)),
    users: lines(Object.entries(verifiers).map(([login, verifier]) => `"${login}" "${verifier}"`)),
  };
  COMPOSED.set(branch, composed);
  return composed;
}

/** The pooler's database entries. */
export function poolerEntries(databases: readonly string[], server: PooledServer): string {
  const { socketDir, port, poolSize, connections, clients } = server;
  const limits = [
    `pool_size=${poolSize}`,
    `max_db_connections=${connections}`,
    ...(clients === null ? [] : [`max_db_client_connections=${clients}`]),
  ].join(' ');
  return lines(
    databases.map((database) => `${database} = host=${socketDir} port=${port} dbname=${database} ${limits}`),
  );
}

/** The databases that such entries name. */
export const databasesOf = (entries: string): string[] =>
  entries
    .split('\n')
    .map((entry) => entry.split(' = ')[0] ?? '')
    .filter((database) => MANAGED_DATABASE.test(database));

/** A rule up to its network and to its method, and the 32 digits of the branch's id that its logins share. */
const RULE = /^((hostssl "[^"]+" "u_([0-9a-f]{32})_\S+) \S+) scram-sha-256$/gm;

/**
 * The same files with these blocks. The first line that matches a client decides, so rejected networks
 * precede the rules.
 * @param rejected blocks that PostgreSQL's file has to reject; members of a network are removed for the
 *   others
 */
export function withBlocked(
  texts: RuleFileTexts,
  blocks: readonly Block[],
  rejected: readonly Block[],
): RuleFileTexts {
  if (blocks.length === 0) return texts;
  const addresses = new Map<string, Set<string | null>>();
  for (const { branch_id, address } of blocks) {
    const id = branch_id.replaceAll('-', '');
    addresses.set(id, (addresses.get(id) ?? new Set()).add(address));
  }
  const begun = new Set<string>();
  const poolerHba = texts.poolerHba.replaceAll(RULE, (line, rule: string, logins: string, id: string) => {
    const ofBranch = addresses.get(id);
    if (!ofBranch) return line;
    if (ofBranch.has(null)) return `${rule} reject`;
    if (begun.has(id)) return line;
    begun.add(id);
    return [...[...ofBranch].map((address) => `${logins} ${address} reject`), line].join('\n');
  });
  const rejections = new Set(
    rejected.map(({ branch_id, address }) => {
      const logins = BRANCH_ROLES.map((role) => `"${loginName(branch_id, role)}"`);
      return `hostssl all ${logins.join(',')} ${address ?? 'all'} reject`;
    }),
  );
  return { ...texts, poolerHba, postgresHba: lines([...rejections]) + texts.postgresHba };
}

/**
 * Blocks of an address within a larger network that the branch admits: others of that network stay members.
 */
export function withinLargerNetworks(blocks: readonly Block[], branches: readonly BranchAccess[]): Block[] {
  if (blocks.length === 0) return [];
  const admitted = new Map(
    branches.flatMap(({ verifiers, cidrs }) =>
      Object.keys(verifiers).map((login) => [branchOfLogin(login), cidrs] as const),
    ),
  );
  return blocks.filter(({ branch_id, address }) => {
    if (address === null) return false;
    const [start = '', length] = address.split('/');
    return admitted
      .get(branch_id)
      ?.some((cidr) => Number(cidr.split('/')[1]) < Number(length) && isInNetwork(start, cidr));
  });
}

const lines = (texts: string[]) => texts.map((text) => `${text}\n`).join('');

function check({ database, verifiers, cidrs }: BranchAccess) {
  const fits =
    MANAGED_DATABASE.test(database) &&
    Object.entries(verifiers).every(([login, verifier]) => LOGIN.test(login) && VERIFIER.test(verifier)) &&
    cidrs.every(isCanonical);
  if (!fits) throw new Error(`the access of ${JSON.stringify(database)} cannot be written into a rule file`);
}

function checkNetwork({ role, cidr }: Network) {
  if (!NETWORK_ROLE.test(role) || !isCanonical(cidr))
    throw new Error(`the network ${JSON.stringify(cidr)} of ${role} cannot be written into a rule file`);
}

function checkStandby({ login, cidrs }: StandbyLogin) {
  if (!STANDBY_LOGIN.test(login) || !cidrs.every(isCanonical))
    throw new Error(`the standby ${JSON.stringify(login)} cannot be written into a rule file`);
}

function checkMover({ login, databases, cidrs }: MoverAccess) {
  const fits =
    MOVER.test(login) && databases.every((name) => MANAGED_DATABASE.test(name)) && cidrs.every(isCanonical);
  if (!fits) throw new Error(`the login ${JSON.stringify(login)} cannot be written into a rule file`);
}

function isCanonical(cidr: string) {
  const reading = readCidr(cidr);
  return reading.ok && reading.cidr === cidr;
}

export const RULE_FILE_NAMES = Object.keys(RULE_FILES) as (keyof RuleFileTexts)[];

/** Creates empty files, because PgBouncer does not start while a file that it includes is missing. */
export async function makeRulesFolder(rulesDir: string): Promise<void> {
  await mkdir(rulesDir, { recursive: true, mode: 0o750 });
  for (const name of Object.values(RULE_FILES)) {
    // 'a' preserves existing content.
    await writeFile(join(rulesDir, name), '', { flag: 'a', mode: 0o640 });
  }
}

/** Rules that admit nobody, for a host whose servers must not be reached. */
export async function closeRuleFiles(rulesDir: string): Promise<void> {
  await makeRulesFolder(rulesDir);
  writeRuleFiles(rulesDir, { postgresHba: '', poolerHba: '', poolerDatabases: '', poolerUsers: '' });
}

export async function readRuleFiles(folder: string): Promise<RuleFileTexts> {
  const texts = await Promise.all(
    RULE_FILE_NAMES.map(async (name) => [name, await readFile(join(folder, RULE_FILES[name]), 'utf8')]),
  );
  return Object.fromEntries(texts);
}

/**
 * Replaces rule files atomically.
 * @param suffix of the temporary file; a writer that does not hold the lock uses its own
 */
export function writeRuleFiles(
  folder: string,
  texts: RuleFileTexts,
  names = RULE_FILE_NAMES,
  suffix = 'new',
): void {
  for (const name of names) {
    const path = join(folder, RULE_FILES[name]);
    writeFileSync(`${path}.${suffix}`, texts[name], { mode: 0o640 });
    renameSync(`${path}.${suffix}`, path);
  }
}
