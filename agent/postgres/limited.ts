import { HostError } from '../servers/host-error.ts';
import type { Session } from './connect.ts';
import { sqlState } from './postgres-failure.ts';

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
