import type { HostFailureCode } from '../../shared/protocol/host-failures.ts';
import { HostError } from '../servers/host-error.ts';

/** SQLSTATEs (PostgreSQL appendix A) and system errors of the socket that say how the host is. */
const CODES: Record<string, HostFailureCode> = {
  ENOENT: 'POSTGRES_UNAVAILABLE',
  ECONNREFUSED: 'POSTGRES_UNAVAILABLE',
  ECONNRESET: 'POSTGRES_UNAVAILABLE',
  EPIPE: 'POSTGRES_UNAVAILABLE',
  '57P01': 'POSTGRES_UNAVAILABLE',
  '57P02': 'POSTGRES_UNAVAILABLE',
  '57P03': 'POSTGRES_UNAVAILABLE',
  '28000': 'POSTGRES_UNAVAILABLE',
  '3D000': 'POSTGRES_UNAVAILABLE',
  '53300': 'HOST_BUSY',
  '53200': 'HOST_BUSY',
  '55006': 'HOST_BUSY',
  '55P03': 'HOST_BUSY',
  '53100': 'HOST_FULL',
};

/** Errors of the `pg` package itself, which carry no code. */
const LOST_SESSION = /^(Connection terminated|timeout e|Client (was closed|has encountered))/;

export const sqlState = (error: unknown): string | undefined =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;

/** What an operation's error means to the edge; one that says nothing about the host comes back as it is. */
export function asHostError(error: unknown): unknown {
  if (!(error instanceof Error) || error instanceof HostError) return error;
  const code =
    CODES[sqlState(error) ?? ''] ?? (LOST_SESSION.test(error.message) ? 'POSTGRES_UNAVAILABLE' : undefined);
  return code ? new HostError(code, `PostgreSQL: ${error.message}`) : error;
}
