import { groupName } from '../../shared/branch/login.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { followName } from '../../shared/protocol/transfer-operations.ts';
import type { RuleSync } from '../access/sync-rules.ts';
import { identifier, inTransaction, literal, type Pool, type Session } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { dropUnusedRoles, ensureGroups } from '../postgres/roles.ts';
import { endSessions } from '../postgres/sessions.ts';

/**
 * The login with which another host reads the databases of a project while the project moves there. Its row names the
 * networks that it connects from, and it is gone with the move.
 */

interface AdmittingHost {
  sessions: Pool;
  rules: RuleSync;
}

const moverLogin = (jobId: string) => `mv_${jobId.replaceAll('-', '')}`;

/** Sessions of the other host: those that copy, the slot, and those that compare. */
const SESSIONS = 20;
/** No move lasts longer. Its login is worthless then, whatever became of the job. */
const VALID_FOR = '30 days';
const ENDING = { within: 5_000 };

/**
 * Makes the login, and admits it from these networks. Repeated, it replaces its password and networks.
 * @throws HostError RULES_NOT_APPLIED, POOLER_UNAVAILABLE
 */
export async function admitHost(
  { sessions, rules }: AdmittingHost,
  { job_id, project_id, verifier, networks }: Params<'move.admit'>,
): Promise<MethodResult<'move.admit'>> {
  const login = moverLogin(job_id);
  await withLocks(sessions, [], (session) =>
    inTransaction(session, async () => {
      await ensureGroups(session, project_id);
      await session.query(
        `INSERT INTO mover (login, project_id, cidrs) VALUES ($1, $2, $3)
         ON CONFLICT (login) DO UPDATE SET cidrs = excluded.cidrs`,
        [login, project_id, networks],
      );
      const { rows } = await session.query('SELECT FROM pg_roles WHERE rolname = $1', [login]);
      const name = identifier(login);
      await session.query(
        `${rows.length > 0 ? 'ALTER' : 'CREATE'} ROLE ${name} LOGIN REPLICATION PASSWORD ${literal(verifier)} CONNECTION LIMIT ${SESSIONS};
         GRANT ${identifier(groupName(project_id, 'owner'))} TO ${name} WITH INHERIT TRUE, SET TRUE;
         DO $$ BEGIN EXECUTE format('ALTER ROLE %I VALID UNTIL %L', ${literal(login)}, now() + interval '${VALID_FOR}'); END $$`,
      );
      for (const database of await databasesOf(session, project_id))
        await session.query(`GRANT CONNECT ON DATABASE ${identifier(database)} TO ${name}`);
    }),
  );
  await rules.sync();
  return {};
}

const databasesOf = async (session: Session, projectId: string): Promise<string[]> => {
  const { rows } = await session.query<{ database: string }>(
    'SELECT database FROM branch JOIN pg_database ON datname = database WHERE project_id = $1 ORDER BY 1',
    [projectId],
  );
  return rows.map(({ database }) => database);
};

/**
 * Ends the sessions of the login, drops the slots that it has left, and drops it.
 * @throws HostError RULES_NOT_APPLIED, POOLER_UNAVAILABLE
 */
export async function releaseHost(
  { sessions, rules }: AdmittingHost,
  { job_id, project_id }: Params<'move.release'>,
): Promise<MethodResult<'move.release'>> {
  const login = moverLogin(job_id);
  return withLocks(sessions, [], async (session) => {
    const { rows } = await session.query('SELECT FROM pg_roles WHERE rolname = $1', [login]);
    const isThere = rows.length > 0;
    if (isThere) {
      const name = identifier(login);
      await session.query(`ALTER ROLE ${name} NOLOGIN PASSWORD NULL`);
      await endSessions(session, 'FROM pg_stat_activity WHERE usename = $1', [login], ENDING);
      await session.query(
        `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
         JOIN branch ON branch.database = pg_replication_slots.database
         WHERE project_id = $1 AND slot_name = $2 AND NOT active`,
        [project_id, followName(project_id)],
      );
      for (const database of await databasesOf(session, project_id))
        await session.query(`REVOKE ALL ON DATABASE ${identifier(database)} FROM ${name}`);
    }
    await session.query('DELETE FROM mover WHERE login = $1', [login]);
    await rules.sync();
    await dropUnusedRoles(session);
    return { released: isThere };
  });
}
