import { setTimeout as sleep } from 'node:timers/promises';
import { loginName } from '../../shared/branch/login.ts';
import type { Params, Result } from '../../shared/protocol/operations.ts';
import { takeForZero } from '../measurement/read-server.ts';
import { inSession } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../servers/host-error.ts';
import type { Host } from './host.ts';

/** Longer than the pooler refuses a database after a failed login of its own (`server_login_retry`). */
const TRY_FOR_MS = 4_000;
const TRY_EVERY_MS = 100;
/** It reads a table, and reports at once what it did: its session stays open, and would report to the first measurement. */
const PROOF = `
  SELECT current_user AS login, datname AS database, pg_catalog.pg_stat_force_next_flush()
  FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()`;
const POOLER_AWAY = new Set(['ENOENT', 'ECONNREFUSED']);

/**
 * Does what the branch's first client will do, with the same password and through the pooler; only over its
 * unix socket, because the network may be closed to everybody.
 * @throws HostError PROOF_FAILED, POOLER_UNAVAILABLE
 */
export async function proveBranch(
  { settings, postgres }: Host,
  { branch_id, database, password }: Params<'branch.prove'>,
): Promise<Result<'branch.prove'>> {
  const user = loginName(branch_id, 'read_write');
  const target = { host: settings.POOLER_SOCKET_DIR, port: settings.POOLER_PORT, user, database, password };
  for (const deadline = Date.now() + TRY_FOR_MS; ; await sleep(TRY_EVERY_MS)) {
    const started = performance.now();
    try {
      const place = await inSession(target, async (session) => {
        const { rows } = await session.query(PROOF);
        return rows[0];
      });
      if (place.login === user && place.database === database) {
        const login_ms = performance.now() - started;
        await takeForZero(postgres, branch_id);
        return { login_ms };
      }
      throw new HostError(
        'PROOF_FAILED',
        `the login to ${database} ended up as ${place.login} in ${place.database}`,
      );
    } catch (error) {
      if (Date.now() < deadline) continue;
      if (error instanceof HostError) throw error;
      const reason = error instanceof Error ? error.message : String(error);
      const code = POOLER_AWAY.has(sqlState(error) ?? '') ? 'POOLER_UNAVAILABLE' : 'PROOF_FAILED';
      throw new HostError(code, `logging in to ${database} through the pooler failed: ${reason}`);
    }
  }
}
