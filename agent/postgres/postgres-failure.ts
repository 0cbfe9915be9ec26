import type { HostFailureCode } from '../../shared/protocol/host-failures.ts';
import { HostError } from '../process/host-error.ts';
import type { Session } from './connect.ts';

/** SQLSTATE of a statement that waited for a lock for longer than `lock_timeout`. */
export const LOCK_NOT_AVAILABLE = '55P03';

/** SQLSTATEs (PostgreSQL documentation, appendix A) that describe the state of the host. */
const STATES: Record<string, HostFailureCode> = {
  '57P01': 'POSTGRES_UNAVAILABLE',
  '57P02': 'POSTGRES_UNAVAILABLE',
  '57P03': 'POSTGRES_UNAVAILABLE',
  '28000': 'POSTGRES_UNAVAILABLE',
  '3D000': 'POSTGRES_UNAVAILABLE',
  '53300': 'HOST_BUSY',
  '53200': 'HOST_BUSY',
  '55006': 'HOST_BUSY',
  [LOCK_NOT_AVAILABLE]: 'HOST_BUSY',
  '53100': 'HOST_FULL',
};

/** Errors of the socket and of the `pg` package, which carry no SQLSTATE, and of the platform's own sessions. */
const MESSAGES: [RegExp, HostFailureCode][] = [
  [/^(connect|read|write) E/, 'POSTGRES_UNAVAILABLE'],
  [/^(Connection terminated|timeout expired|Client (was closed|has encountered))/, 'POSTGRES_UNAVAILABLE'],
  // Its ids are used up, until old rows are frozen. The SQLSTATE has many other meanings.
  [/^database is not accepting commands that assign new/, 'POSTGRES_UNAVAILABLE'],
  // Every session for operations is in use.
  [/^timeout exceeded/, 'HOST_BUSY'],
];

export const sqlState = (error: unknown): string | undefined =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;

/**
 * Maps an operation's error to a failure of the host. An error that says nothing about the host is returned
 * as it is.
 */
export function asHostError(error: unknown): unknown {
  if (!(error instanceof Error) || error instanceof HostError) return error;
  const { message } = error;
  const code = STATES[sqlState(error) ?? ''] ?? MESSAGES.find(([pattern]) => pattern.test(message))?.[1];
  return code ? new HostError(code, `PostgreSQL: ${message}`) : error;
}

/** SQLSTATE `query_canceled`. */
const CANCELED = '57014';

/**
 * Runs `action` with a time limit for each statement of a session of the platform.
 * @param within milliseconds
 * @throws HostError TIME_LIMIT_REACHED
 */
export async function limited<T>(session: Session, within: number, action: () => Promise<T>): Promise<T> {
  await session.query(`SET statement_timeout = ${Math.max(1, Math.round(within))}`);
  try {
    return await action();
  } catch (error) {
    if (sqlState(error) !== CANCELED) throw error;
    throw new HostError('TIME_LIMIT_REACHED', 'a statement of the platform took too long');
  } finally {
    // Fails only if the session is lost, which the error of the action says.
    await session.query('RESET statement_timeout').catch(() => {});
  }
}
