import { HOST_FAILURES, type HostFailureCode } from '../../shared/protocol/host-failures.ts';
import { asHostError } from '../postgres/postgres-failure.ts';
import { HostError } from '../servers/host-error.ts';

/** What the control tool's exit code says; part of its help. */
export const EXIT_CODES = {
  ok: { code: 0, meaning: 'done' },
  failed: { code: 1, meaning: 'failed, or `doctor` found a problem' },
  usage: { code: 2, meaning: 'wrong usage: nothing was done' },
  refused: { code: 3, meaning: 'refused as things are now: nothing was changed' },
  unreachable: { code: 4, meaning: 'a server of this host, or the gateway, does not answer' },
} as const;

/** What the person at the shell can do about it. */
const ADVICE: Partial<Record<HostFailureCode, string>> = {
  SOURCE_BUSY: 'wait for that session to end its transaction, or give --busy-wait more milliseconds',
  SOURCE_MISSING: '`list` shows the databases there are',
  DATABASE_NAME_HELD: '`list` shows whose it is; drop that branch first',
  INVALID_CALL: '--help shows what is expected',
  PROOF_FAILED: "check the password, and PgBouncer's log",
  POSTGRES_UNAVAILABLE:
    'start PostgreSQL, check POSTGRES_SOCKET_DIR and POSTGRES_PORT, run this as its system user',
  POOLER_UNAVAILABLE: 'start PgBouncer, check POOLER_SOCKET_DIR and POOLER_PORT, run this as its system user',
  RULES_NOT_APPLIED: '`doctor` says what is wrong with the set-up',
  HOST_BUSY: 'try again in a moment',
  HOST_FULL: 'make room in the data directory',
};

/** The command line, or the environment, asks for something impossible. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** The gateway, not a server of this host, does not do what was asked. */
export class GatewayError extends Error {
  override readonly name = 'GatewayError';
}

/** `doctor` has told what is wrong; there is nothing to add. */
export class ProblemsFound extends Error {
  override readonly name = 'ProblemsFound';
}

/** One line: what is wrong, then what to do. Empty when it was said already. */
export function explain(thrown: unknown): string {
  const error = asHostError(thrown);
  if (error instanceof ProblemsFound) return '';
  if (!(error instanceof HostError)) return error instanceof Error ? oneLine(error.message) : String(error);
  const advice = ADVICE[error.code];
  return `${oneLine(error.message)} (${error.code})${advice ? `: ${advice}` : ''}`;
}

const oneLine = (text: string) => text.replaceAll(/\s+/g, ' ').trim();

export function exitCodeOf(thrown: unknown): number {
  const error = asHostError(thrown);
  if (error instanceof UsageError) return EXIT_CODES.usage.code;
  if (error instanceof GatewayError) return EXIT_CODES.unreachable.code;
  if (!(error instanceof HostError)) return EXIT_CODES.failed.code;
  if (error.code === 'INVALID_CALL') return EXIT_CODES.usage.code;
  if (error.code.endsWith('_UNAVAILABLE')) return EXIT_CODES.unreachable.code;
  return HOST_FAILURES[error.code] === 'refused' ? EXIT_CODES.refused.code : EXIT_CODES.failed.code;
}
