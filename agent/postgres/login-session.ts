import { type BranchRole, groupName, loginName } from '../../shared/branch/login.ts';
import type { AgentSettings } from '../process/settings.ts';
import { boundedSocket } from './bounded-socket.ts';
import { inSession, type Session } from './connect.ts';

/** A clone of the database delays new sessions until it is complete. */
const CONNECT_WITHIN_MS = 3_000;
const STATEMENT_WITHIN_MS = 2_000;
const LOCK_WITHIN_MS = 500;
/** The session is ended after this time in every case. */
const SESSION_WITHIN_MS = 5_000;

export interface LoginBranch {
  branch_id: string;
  project_id: string;
  database: string;
}

/** Start-up options, which override settings that the tenant made with ALTER ROLE … SET. */
const optionsWith = (more: readonly string[]) =>
  [
    ...more,
    'search_path=pg_catalog,pg_temp',
    'local_preload_libraries=',
    'default_transaction_read_only=off',
    'default_transaction_isolation=read\\ committed',
    'DateStyle=ISO',
    // A repair must not wait for a standby that is away.
    'synchronous_commit=local',
    `lock_timeout=${LOCK_WITHIN_MS}`,
    `statement_timeout=${STATEMENT_WITHIN_MS}`,
    `transaction_timeout=${SESSION_WITHIN_MS}`,
    `idle_session_timeout=${SESSION_WITHIN_MS}`,
  ]
    .map((option) => `-c ${option}`)
    .join(' ');

/**
 * Runs short statements of the agent in a branch's database as one of its logins over the unix socket, because
 * no superuser opens a session there. The owner login acts only as its group. The statements must call no function
 * of the tenant; only a superuser can make an event trigger.
 * @throws Error when the login is refused, for example because the branch has no connection left
 */
export const inLoginSession = <T>(
  settings: AgentSettings,
  { branch_id, project_id, database }: LoginBranch,
  role: BranchRole,
  action: (session: Session) => Promise<T>,
): Promise<T> => {
  const acting = role === 'owner' ? [`role=${groupName(project_id, role)}`] : [];
  return inAgentLogin(settings, { login: loginName(branch_id, role), database }, action, acting);
};

/** As `inLoginSession`, for a login that may belong to no branch. @param more start-up options */
export const inAgentLogin = <T>(
  { POSTGRES_SOCKET_DIR, POSTGRES_PORT }: AgentSettings,
  { login, database }: { login: string; database: string },
  action: (session: Session) => Promise<T>,
  more: readonly string[] = [],
): Promise<T> =>
  inSession(
    {
      host: POSTGRES_SOCKET_DIR,
      port: POSTGRES_PORT,
      user: login,
      database,
      application_name: 'branchgate-privileges',
      options: optionsWith(more),
      connectionTimeoutMillis: CONNECT_WITHIN_MS,
      query_timeout: SESSION_WITHIN_MS,
      stream: () => boundedSocket('repair'),
    },
    action,
  );
