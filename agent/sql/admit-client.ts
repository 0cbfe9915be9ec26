import { type BranchRole, loginName } from '../../shared/branch/login.ts';
import type { Queryable } from '../postgres/connect.ts';

/** A client of SQL over HTTP or WebSocket. */
export interface SqlClient {
  project_id: string;
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

/** One text for every reason for which a login does not exist, or not now. SQLSTATE `invalid_password`. */
export const wrongPassword = ({ branch_id, role }: Pick<SqlClient, 'branch_id' | 'role'>) =>
  fatal('28P01', `password authentication failed for user "${loginName(branch_id, role)}"`);

/** SQLSTATE `invalid_authorization_specification`. */
const notAdmitted = (address: string) =>
  fatal('28000', `no network rule lets ${address} use SQL over HTTP on this branch`);

interface Admission {
  revision: number;
  tenant: string | null;
  is_admitted: boolean;
  is_blocked: boolean;
}

export type Decision =
  | { outcome: 'admitted'; tenant: string }
  | { outcome: 'refused'; error: SqlError }
  /** The host has access newer than `revision`. */
  | { outcome: 'outdated' };

/**
 * Decides whether a client may use a login of a branch now: by the network rules of both kinds, blocks of the branch and of
 * the address, and closures, of expired branches and moving projects among them. The write block is a setting of the login.
 * @param revision of the access that the gateway has read; null: none was read
 */
export async function admitClient(
  db: Queryable,
  client: SqlClient,
  revision: number | null,
): Promise<Decision> {
  const { project_id, branch_id, database, role, address } = client;
  const rules = (table: 'network_rule' | 'sql_rule') =>
    `SELECT cidr FROM ${table} WHERE project_id = $1 AND (branch_id IS NULL OR branch_id = $2)`;
  const { rows } = await db.query<Admission>(
    `SELECT access_revision AS revision, coalesce(tenant, project_id::text) AS tenant,
       EXISTS (SELECT FROM (${rules('network_rule')} UNION ALL ${rules('sql_rule')}) AS rule
         WHERE $5::inet <<= cidr) AS is_admitted,
       EXISTS (SELECT FROM blocked_branch WHERE branch_id = $2 AND until > clock_timestamp()) OR
       EXISTS (SELECT FROM blocked_address
         WHERE branch_id = $2 AND until > clock_timestamp() AND (address IS NULL OR $5::inet <<= address))
         AS is_blocked
     FROM project JOIN branch USING (project_id) JOIN login USING (branch_id)
     WHERE project_id = $1 AND branch_id = $2 AND database = $3 AND login = $4
       AND verifier IS NOT NULL AND NOT closed`,
    [project_id, branch_id, database, loginName(branch_id, role), address],
  );
  const [found] = rows;
  if (!found) return { outcome: 'refused', error: wrongPassword(client) };
  if (revision !== null && Number(found.revision) > revision) return { outcome: 'outdated' };
  if (!found.is_admitted || found.is_blocked) return { outcome: 'refused', error: notAdmitted(address) };
  return { outcome: 'admitted', tenant: found.tenant ?? project_id };
}
