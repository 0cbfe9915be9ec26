import { loginName } from '../../shared/branch/login.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { setBaseline } from '../measurement/database-statistics.ts';
import { pollUntil } from '../poll-until.ts';
import { isAway, showDatabases, socketOf, withConsole } from '../pooler/console.ts';
import { instancesNow } from '../pooler/restart-state.ts';
import { inSession } from '../postgres/connect.ts';
import { DEFAULT_PRIVILEGES, lostGroups } from '../privileges/default-privileges.ts';
import { repair } from '../privileges/repair-privileges.ts';
import { HostError } from '../servers/host-error.ts';
import type { AgentSettings } from '../settings.ts';

/** Longer than the pooler refuses a database after one of its own logins failed (`server_login_retry`). */
const TRY_FOR_MS = 4_000;
const TRY_EVERY_MS = 100;
/**
 * Reads the default privileges, which the clone may have inherited without those that a login dropped: the first session in
 * a database costs tens of milliseconds of processor time, so there is no other one for that. The statistics are flushed
 * because the session stays open in the pooler, and would otherwise report this transaction to the branch's first measurement.
 */
const PROOF = `
  SELECT current_user AS login, pg_catalog.current_database() AS database, pg_catalog.pg_stat_force_next_flush(),
    ARRAY (${DEFAULT_PRIVILEGES}) AS privileges`;
/** PgBouncer's message before it checks a password. Its SQLSTATE is the same for all its refusals. */
const POOLER_FULL = /^no more connections allowed \(max_client_conn\)/;

/**
 * Connects as the branch's first client will, with the same password and through the pooler. It uses the unix
 * socket, because no network may be admitted yet. When clients have taken all the pooler's slots, two separate
 * checks replace it: the pooler serves the database, and PostgreSQL admits the login there. They skip the password.
 * @throws HostError PROOF_FAILED, POOLER_UNAVAILABLE
 */
export async function proveBranch(
  host: Host,
  params: Params<'branch.prove'>,
): Promise<MethodResult<'branch.prove'>> {
  const { settings, postgres } = host;
  const { branch_id, database } = params;
  let failure: unknown;
  const proof = await pollUntil(
    async () => {
      const started = performance.now();
      try {
        const { privileges } = await logIn(settings, params).catch((error) => {
          if (!(error instanceof Error && POOLER_FULL.test(error.message))) throw error;
          return logInAroundFullPooler(settings, params);
        });
        const login_ms = performance.now() - started;
        if (lostGroups(params.project_id, privileges).length > 0) await repair(host, params);
        await setBaseline(postgres, branch_id);
        return { login_ms };
      } catch (error) {
        failure = error;
        return null;
      }
    },
    { within: TRY_FOR_MS, every: TRY_EVERY_MS },
  );
  if (proof) return proof;
  if (failure instanceof HostError) throw failure;
  const reason = failure instanceof Error ? failure.message : String(failure);
  const code = isAway(failure) ? 'POOLER_UNAVAILABLE' : 'PROOF_FAILED';
  throw new HostError(code, `logging in to ${database} through the pooler failed: ${reason}`);
}

interface Reached {
  login: string;
  database: string;
  /** Default privileges, as `lostGroups` takes them. */
  privileges: string[];
}

/** @param socket of one of the two servers; by default of the pooler that clients reach */
async function logIn(
  settings: AgentSettings,
  { branch_id, database, password }: Params<'branch.prove'>,
  socket = socketOf(settings, instancesNow(settings).newClients),
): Promise<Reached> {
  const user = loginName(branch_id, 'read_write');
  const { rows } = await inSession({ ...socket, user, database, password }, (session) =>
    session.query<Reached>(PROOF),
  );
  const [reached] = rows;
  if (reached?.login === user && reached.database === database) return reached;
  throw new HostError(
    'PROOF_FAILED',
    `the login to ${database} ended up as ${reached?.login} in ${reached?.database}`,
  );
}

async function logInAroundFullPooler(
  settings: AgentSettings,
  params: Params<'branch.prove'>,
): Promise<Reached> {
  const { database } = params;
  // PgBouncer admits its console user even when it is full.
  const served = await withConsole(settings, showDatabases);
  if (!served.some(({ name, paused }) => name === database && !paused)) {
    throw new HostError('PROOF_FAILED', `the pooler is full, and does not serve ${database}`);
  }
  return logIn(settings, params, { host: settings.POSTGRES_SOCKET_DIR, port: settings.POSTGRES_PORT });
}
