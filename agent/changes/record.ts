import { removeLogin } from '../difference/schema/comparison-login.ts';
import type { Queryable } from '../postgres/connect.ts';
import { endSessions } from '../postgres/sessions.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';

/**
 * How far a change is, in the agent's own tables. A step in a transaction is recorded with its transaction id before its
 * commit, so PostgreSQL itself says after a kill whether it took effect, and `main` gets no table of ours. The WAL has the
 * record before the commit, on a standby too.
 */
export interface ChangeRecord {
  change_id: string;
  /** Null: a call was killed before its job began. */
  job_id: string | null;
  /** Steps that are applied. */
  done: number;
  /** Transaction id of the step that was about to commit; null: none was. */
  xid: string | null;
  /** The login of the call, which a kill leaves with its sessions. */
  login: string | null;
  /** Before a step that runs alone; null: none runs. */
  alone: { schema: string; invalid: string[] } | null;
}

export async function readRecord(db: Queryable, changeId: string): Promise<ChangeRecord | null> {
  const { rows } = await db.query<ChangeRecord>(
    'SELECT change_id, job_id, done, xid::text, login, alone FROM applied_change WHERE change_id = $1',
    [changeId],
  );
  return rows[0] ?? null;
}

/** Stores the record of a job that begins or continues. */
export async function beginRecord(
  db: Queryable,
  {
    change_id,
    job_id,
    branch_id,
    done,
  }: { change_id: string; job_id: string; branch_id: string; done: number },
): Promise<void> {
  await db.query(
    `INSERT INTO applied_change (change_id, job_id, branch_id, done) VALUES ($1, $2, $3, $4)
     ON CONFLICT (change_id) DO UPDATE SET job_id = excluded.job_id, done = excluded.done`,
    [change_id, job_id, branch_id, done],
  );
}

/** Stores the login before it is made. */
export const recordLogin = (
  db: Queryable,
  { change_id, branch_id }: { change_id: string; branch_id: string },
  login: string,
) =>
  db.query(
    `INSERT INTO applied_change (change_id, branch_id, done, login) VALUES ($1, $2, 0, $3)
     ON CONFLICT (change_id) DO UPDATE SET login = excluded.login`,
    [change_id, branch_id, login],
  );

/** @param xid of the transaction of the step that commits next */
export const recordCommit = (db: Queryable, changeId: string, xid: string) =>
  db.query('UPDATE applied_change SET xid = $2::xid8 WHERE change_id = $1', [changeId, xid]);

export const recordAlone = (db: Queryable, changeId: string, alone: ChangeRecord['alone']) =>
  db.query('UPDATE applied_change SET alone = $2 WHERE change_id = $1', [
    changeId,
    alone && JSON.stringify(alone),
  ]);

export const recordDone = (db: Queryable, changeId: string, done: number) =>
  db.query('UPDATE applied_change SET done = $2, xid = NULL, alone = NULL WHERE change_id = $1', [
    changeId,
    done,
  ]);

const ENDING = { within: 5_000 };
const ENDED = { within: 10_000, every: 20 };

/** Ends the sessions of a call that nothing waits for. @throws HostError HOST_BUSY */
export async function endLeft(db: Queryable, { login }: Pick<ChangeRecord, 'login'>): Promise<void> {
  if (login === null) return;
  const left = 'FROM pg_stat_activity WHERE usename = $1';
  if (!(await endSessions(db, left, [login], ENDING)))
    throw new HostError('HOST_BUSY', 'a session of an agent that was killed does not end');
}

/** Ends the sessions of a call that was killed, and removes its login. @throws HostError HOST_BUSY */
export async function removeLeft(db: Queryable, record: Pick<ChangeRecord, 'login'>): Promise<void> {
  await endLeft(db, record);
  if (record.login !== null) await removeLogin(db, record.login);
}

/** Reads whether the transaction was committed. Its session has ended. @throws HostError HOST_BUSY */
export async function isCommitted(db: Queryable, xid: string): Promise<boolean> {
  const settled = await pollUntil(async () => {
    const { rows } = await db.query<{ status: string | null }>('SELECT pg_xact_status($1::xid8) AS status', [
      xid,
    ]);
    const status = rows[0]?.status ?? 'aborted';
    return status === 'in progress' ? null : status;
  }, ENDED);
  if (settled === null) throw new HostError('HOST_BUSY', 'the transaction of a step has not ended');
  return settled === 'committed';
}
