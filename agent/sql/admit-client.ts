import { type BranchRole, loginName } from '../../shared/branch/login.ts';
import type { Queryable } from '../postgres/connect.ts';

/** A client of SQL over HTTP or WebSocket. */
export interface SqlClient {
  /** Null: not named by the client. */
  project_id: string | null;
  branch_id: string;
  database: string;
  role: BranchRole;
  /** A plain address. */
  address: string;
}

/** An error as a PostgreSQL client gets it. */
export interface SqlError {
  code: string;
  message: string;
  severity?: string;
  [field: string]: string | undefined;
}

export const fatal = (code: string, message: string): SqlError => ({ severity: 'FATAL', code, message });

/** Ends a client with this error. */
export class SqlRefusal extends Error {
  override readonly name = 'SqlRefusal';
  readonly error: SqlError;

  constructor(error: SqlError) {
    super(error.message);
    this.error = error;
  }
}

/** SQLSTATE `protocol_violation`. */
export const violation = (message: string) => new SqlRefusal(fatal('08P01', message));

/** One text for every reason for which a login does not exist, or not now. SQLSTATE `invalid_password`. */
export const wrongPassword = (login: string) =>
  fatal('28P01', `password authentication failed for user "${login}"`);

export const loginOf = ({ branch_id, role }: Pick<SqlClient, 'branch_id' | 'role'>) =>
  loginName(branch_id, role);

/** SQLSTATE `invalid_authorization_specification`. */
const notAdmitted = (address: string) =>
  fatal('28000', `no network rule lets ${address} use this branch by SQL over HTTP or WebSocket`);

const blocked = (address: string) =>
  fatal('28000', `this branch admits no clients of ${address} for now: see its blocks`);

/** SQLSTATE `cannot_connect_now`. */
const CLOSED = fatal('57P03', 'this host has no clients while another one takes its place: try again');

interface Admission {
  revision: number;
  tenant: string;
  verifier: string;
  is_admitted: boolean;
  /** By a watchdog. */
  is_branch_blocked: boolean;
  /** By the limit of attempts, which ends no session. */
  is_address_blocked: boolean;
}

export type Decision =
  | { outcome: 'admitted'; tenant: string; verifier: string }
  /** `verifier` of the login, if it exists now. */
  | { outcome: 'refused'; error: SqlError; verifier: string | null }
  /** The host has access newer than `revision`. */
  | { outcome: 'outdated' };

/** The state that decides about clients. */
export interface AdmittingHost {
  postgres: Queryable;
  rules: { readonly isClosed: boolean };
}

const EXISTS_RULE = (table: 'network_rule' | 'sql_rule') =>
  `EXISTS (SELECT FROM ${table} AS rule WHERE rule.project_id = branch.project_id
     AND (rule.branch_id IS NULL OR rule.branch_id = branch.branch_id) AND client.address <<= cidr)`;

/**
 * Decides whether clients may use logins of branches now: by the network rules of both kinds, blocks of the branch and of
 * the address, and closures, of expired branches and moving projects among them. The write block is a setting of the login.
 * @param isOpen whether the clients are logged in: the limit of attempts ends no session
 * @param revision of the access that the gateway has read; null: none was read
 * @returns the decisions in the order of the clients
 */
export async function admitClients(
  { postgres, rules }: AdmittingHost,
  clients: readonly SqlClient[],
  { isOpen = false, revision = null }: { isOpen?: boolean; revision?: number | null } = {},
): Promise<Decision[]> {
  const { rows } = await postgres.query<Admission & { at: number }>(
    `SELECT at::int, access_revision AS revision, coalesce(tenant, project.project_id::text) AS tenant, verifier,
       ${EXISTS_RULE('network_rule')} OR ${EXISTS_RULE('sql_rule')} AS is_admitted,
       EXISTS (SELECT FROM blocked_branch AS block
         WHERE block.branch_id = branch.branch_id AND until > clock_timestamp()) AS is_branch_blocked,
       EXISTS (SELECT FROM blocked_address AS block
         WHERE block.branch_id = branch.branch_id AND until > clock_timestamp()
           AND (block.address IS NULL OR client.address <<= block.address)) AS is_address_blocked
     FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::inet[])
       WITH ORDINALITY AS client (project_id, branch_id, database, login, address, at)
     JOIN branch ON branch.branch_id = client.branch_id AND branch.database = client.database
       AND branch.project_id = coalesce(client.project_id, branch.project_id)
     JOIN project ON project.project_id = branch.project_id
     JOIN login ON login.branch_id = branch.branch_id AND login.login = client.login
     WHERE verifier IS NOT NULL AND NOT closed`,
    [
      clients.map(({ project_id }) => project_id),
      clients.map(({ branch_id }) => branch_id),
      clients.map(({ database }) => database),
      clients.map(loginOf),
      clients.map(({ address }) => address),
    ],
  );
  const found = new Map(rows.map((row) => [row.at, row]));
  return clients.map((client, index) => {
    const admission = found.get(index + 1);
    if (!admission) return { outcome: 'refused', error: wrongPassword(loginOf(client)), verifier: null };
    const { verifier, tenant } = admission;
    if (revision !== null && Number(admission.revision) > revision) return { outcome: 'outdated' };
    if (rules.isClosed) return { outcome: 'refused', error: CLOSED, verifier };
    if (!admission.is_admitted) return { outcome: 'refused', error: notAdmitted(client.address), verifier };
    if (admission.is_branch_blocked || (admission.is_address_blocked && !isOpen))
      return { outcome: 'refused', error: blocked(client.address), verifier };
    return { outcome: 'admitted', tenant, verifier };
  });
}

/** Decides about one client that wants to log in. */
export async function admitClient(
  host: AdmittingHost,
  client: SqlClient,
  revision: number | null = null,
): Promise<Decision> {
  const [decision] = await admitClients(host, [client], { revision });
  if (!decision) throw new Error('a client has no decision');
  return decision;
}
