import { loginName } from '../../shared/branch/login.ts';
import type { Host } from '../host.ts';
import { AS_TEXT, inTransaction, openSession, type Session } from '../postgres/connect.ts';
import { COMPARING } from '../postgres/source-sessions.ts';
import { asOptions, bounded, boundedSocket, OPTIONS } from '../rows/branch-session.ts';
import type { Side } from './sides.ts';

/** A clone of the database delays new sessions until it is complete. */
const CONNECT_WITHIN_MS = 5_000;
/** Digests of all rows of a large table. */
const BYTES_MAX = 16 * 2 ** 30;
/** Of them in memory of the agent: the catalog, or the rows that are fetched together. */
const ANSWER_BYTES_MAX = 32 * 2 ** 20;

/**
 * Runs `action` in one snapshot of the database, as its read-only login. The statements are ours, over tables and
 * pg_catalog only, so no code of the tenant runs: a table with policies for this login is an error.
 * @param options.within milliseconds
 * @param options.firstRows whether the first rows are wanted soon, rather than all rows
 * @throws HostError STATEMENT_REFUSED, TIME_LIMIT_REACHED
 */
export async function inSnapshotOf<T>(
  host: Host,
  { branch_id, database }: Side,
  { within, firstRows }: { within: number; firstRows: boolean },
  action: (session: Session) => Promise<T>,
): Promise<T> {
  const user = loginName(branch_id, 'read_only');
  const session = await openSession({
    host: host.settings.POSTGRES_SOCKET_DIR,
    port: host.settings.POSTGRES_PORT,
    user,
    database,
    application_name: COMPARING,
    options: asOptions({
      ...OPTIONS,
      default_transaction_isolation: 'repeatable read',
      default_transaction_read_only: 'on',
      row_security: 'off',
      work_mem: '16MB',
      cursor_tuple_fraction: firstRows ? 0.1 : 1,
      statement_timeout: within,
      transaction_timeout: within,
      // While the other side sorts.
      idle_in_transaction_session_timeout: within,
    }),
    types: AS_TEXT,
    stream: () => boundedSocket(BYTES_MAX, ANSWER_BYTES_MAX),
    connectionTimeoutMillis: CONNECT_WITHIN_MS,
  });
  return bounded(host, session, user, () => inTransaction(session, () => action(session)), { within });
}
