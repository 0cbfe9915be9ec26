import { setTimeout as sleep } from 'node:timers/promises';
import { loginName } from '../../shared/branch/login.ts';
import type { Params, Result } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { setBaseline } from '../measurement/read-server.ts';
import { showDatabases, withConsole } from '../pooler/console.ts';
import { inSession } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../servers/host-error.ts';
import type { AgentSettings } from '../settings.ts';

/** Longer than the pooler refuses a database after a failed login of its own (`server_login_retry`). */
const TRY_FOR_MS = 4_000;
const TRY_EVERY_MS = 100;
/** It reads a table, and reports at once what it did: its session stays open, and would report to the first measurement. */
const PROOF = `
  SELECT current_user AS login, datname AS database, pg_catalog.pg_stat_force_next_flush()
  FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()`;
const POOLER_AWAY = new Set(['ENOENT', 'ECONNREFUSED']);
/** PgBouncer's words, with one SQLSTATE for all its refusals. It says so before it looks at a password. */
const POOLER_FULL = /^no more connections allowed \(max_client_conn\)/;

/**
 * Does what the branch's first client will do, with the same password and through the pooler; only over its
 * unix socket, because the network may be closed to everybody. When clients have taken all the pooler's places, it is
 * proved in two halves: the pooler serves the database, and PostgreSQL lets the login in there. That leaves out
 * the password.
 * @throws HostError PROOF_FAILED, POOLER_UNAVAILABLE
 */
export async function proveBranch(
  { settings, postgres }: Host,
  params: Params<'branch.prove'>,
): Promise<Result<'branch.prove'>> {
  const { branch_id, database } = params;
  for (const deadline = performance.now() + TRY_FOR_MS; ; await sleep(TRY_EVERY_MS)) {
    const started = performance.now();
    try {
      await logIn(settings, params).catch((error) => {
        if (!(error instanceof Error && POOLER_FULL.test(error.message))) throw error;
        return logInByHalves(settings, params);
      });
      const login_ms = performance.now() - started;
      await setBaseline(postgres, branch_id);
      return { login_ms };
    } catch (error) {
      if (performance.now() < deadline) continue;
      if (error instanceof HostError) throw error;
      const reason = error instanceof Error ? error.message : String(error);
      const code = POOLER_AWAY.has(sqlState(error) ?? '') ? 'POOLER_UNAVAILABLE' : 'PROOF_FAILED';
      throw new HostError(code, `logging in to ${database} through the pooler failed: ${reason}`);
    }
  }
}

/** @param socket of one of the two servers; the pooler's, unless given */
async function logIn(
  settings: AgentSettings,
  { branch_id, database, password }: Params<'branch.prove'>,
  socket = { host: settings.POOLER_SOCKET_DIR, port: settings.POOLER_PORT },
): Promise<void> {
  const user = loginName(branch_id, 'read_write');
  const { rows } = await inSession({ ...socket, user, database, password }, (session) =>
    session.query<{ login: string; database: string }>(PROOF),
  );
  const [place] = rows;
  if (place?.login === user && place.database === database) return;
  throw new HostError(
    'PROOF_FAILED',
    `the login to ${database} ended up as ${place?.login} in ${place?.database}`,
  );
}

async function logInByHalves(settings: AgentSettings, params: Params<'branch.prove'>): Promise<void> {
  const { database } = params;
  // Its console has a place for the agent even then.
  const served = await withConsole(settings, showDatabases);
  if (!served.some(({ name, paused }) => name === database && !paused)) {
    throw new HostError('PROOF_FAILED', `the pooler is full, and does not serve ${database}`);
  }
  await logIn(settings, params, { host: settings.POSTGRES_SOCKET_DIR, port: settings.POSTGRES_PORT });
}
