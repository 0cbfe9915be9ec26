import { readFile } from 'node:fs/promises';
import { branchOfLogin } from '../../shared/branch/login.ts';
import type { Queryable } from './connect.ts';

/** A login over the network that PostgreSQL has not finished. */
export interface ClientLogin {
  pid: number;
  /** When its connection was accepted, as PostgreSQL writes it. */
  since: string;
  /** Milliseconds since then. */
  age: number;
  address: string;
  /** Null when it is unknown. */
  branch_id: string | null;
  /** Whether PostgreSQL waits for the client's password. */
  isAuthenticating: boolean;
}

/**
 * The title of a process: an optional `cluster_name`, login, database, address and stage. PostgreSQL's views show the
 * login only once it is authenticated. The rules admit a client under its branch's login only.
 */
const TITLE = /^postgres: (?:\S+: )?(u_[0-9a-f]{32}_(?:owner|rw|ro)) /;
const AUTHENTICATING = / authentication$/;

/** @param before leaves out later ones; as PostgreSQL writes it */
export async function readClientLogins(db: Queryable, before: string | null = null): Promise<ClientLogin[]> {
  const { rows } = await db.query<Pick<ClientLogin, 'pid' | 'since' | 'age' | 'address'>>(
    `SELECT pid, backend_start::text AS since, host(client_addr) AS address,
            (extract(epoch FROM clock_timestamp() - backend_start) * 1000)::float8 AS age
     FROM pg_stat_activity
     WHERE state = 'starting' AND client_addr IS NOT NULL
       AND ($1::timestamptz IS NULL OR backend_start < $1::timestamptz)`,
    [before],
  );
  return Promise.all(
    rows.map(async (row) => {
      const title = await readTitle(row.pid);
      const [, login] = TITLE.exec(title) ?? [];
      return {
        ...row,
        branch_id: login === undefined ? null : branchOfLogin(login),
        isAuthenticating: AUTHENTICATING.test(title),
      };
    }),
  );
}

const readTitle = (pid: number) =>
  readFile(`/proc/${pid}/cmdline`, 'utf8').then(
    (text) => (text.split('\0', 1)[0] ?? '').trim(),
    () => '',
  );
