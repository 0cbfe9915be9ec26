import { MANAGED_DATABASE } from '../../shared/branch/database-name.ts';
import { readCidr } from '../../shared/cidr.ts';
import type { RULE_FILES } from '../servers/configuration.ts';

/** Who may come into one branch's database, and from where. */
export interface BranchAccess {
  database: string;
  /** SCRAM-SHA-256 verifiers by login. */
  verifiers: Record<string, string>;
  /** Networks in canonical form. */
  cidrs: string[];
}

export type RuleFileTexts = Record<keyof typeof RULE_FILES, string>;

interface PostgresSocket {
  socketDir: string;
  port: number;
}

const LOGIN = /^u_[0-9a-f]{32}_(owner|rw|ro)$/;
const VERIFIER = /^SCRAM-SHA-256\$[\w+/=$:]+$/;

/**
 * The text of every rule file. What is not named in them is refused by both servers.
 * @throws Error when a value could end its field: one bad line and PostgreSQL would not start again
 */
export function ruleFiles(branches: readonly BranchAccess[], postgres: PostgresSocket): RuleFileTexts {
  branches.forEach(check);
  const networkLines = branches.flatMap(({ database, verifiers, cidrs }) => {
    const logins = Object.keys(verifiers).map((login) => `"${login}"`);
    return cidrs.map((cidr) => `hostssl "${database}" ${logins.join(',')} ${cidr} scram-sha-256`);
  });
  return {
    postgresHba: lines(networkLines),
    // The proof of a new branch comes over the unix socket, with the password that its client will use.
    poolerHba: lines(['local all all scram-sha-256', ...networkLines]),
    poolerDatabases: poolerEntries(
      branches.map(({ database }) => database),
      postgres,
    ),
    poolerUsers: lines(
      branches.flatMap(({ verifiers }) =>
        Object.entries(verifiers).map(([login, verifier]) => `"${login}" "${verifier}"`),
      ),
    ),
  };
}

/** What the pooler serves. */
export const poolerEntries = (databases: readonly string[], { socketDir, port }: PostgresSocket) =>
  lines(databases.map((database) => `${database} = host=${socketDir} port=${port} dbname=${database}`));

/** The databases that a text of such entries names. */
export const databasesOf = (entries: string): string[] =>
  entries
    .split('\n')
    .map((entry) => entry.split(' = ')[0] ?? '')
    .filter((database) => MANAGED_DATABASE.test(database));

/** A rule, with the 32 digits of the branch's id that its logins have in common. */
const RULE = /^(hostssl "[^"]+" "u_([0-9a-f]{32})_\S+ \S+) scram-sha-256$/gm;

/** The same files, save that whoever they let into these branches is refused. To all others nothing changes. */
export function refusing(texts: RuleFileTexts, branchIds: ReadonlySet<string>): RuleFileTexts {
  if (branchIds.size === 0) return texts;
  const refused = new Set([...branchIds].map((id) => id.replaceAll('-', '')));
  const refuse = (text: string) =>
    text.replaceAll(RULE, (line, rule: string, id: string) => (refused.has(id) ? `${rule} reject` : line));
  return { ...texts, postgresHba: refuse(texts.postgresHba), poolerHba: refuse(texts.poolerHba) };
}

const lines = (texts: string[]) => texts.map((text) => `${text}\n`).join('');

function check({ database, verifiers, cidrs }: BranchAccess) {
  const fits =
    MANAGED_DATABASE.test(database) &&
    Object.entries(verifiers).every(([login, verifier]) => LOGIN.test(login) && VERIFIER.test(verifier)) &&
    cidrs.every(isCanonical);
  if (!fits) throw new Error(`the access of ${JSON.stringify(database)} can't be written into a rule file`);
}

function isCanonical(cidr: string) {
  const reading = readCidr(cidr);
  return reading.ok && reading.cidr === cidr;
}
