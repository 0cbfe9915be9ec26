import { HOST_FAILURES, type HostFailureCode } from '../../shared/protocol/host-failures.ts';
import { asHostError } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';

/** The control tool's exit codes; part of its help. */
export const EXIT_CODES = {
  ok: { code: 0, meaning: 'done' },
  failed: { code: 1, meaning: 'failed, or `doctor` found a problem' },
  usage: { code: 2, meaning: 'wrong usage; nothing was done' },
  refused: { code: 3, meaning: 'refused in the present state; nothing was changed' },
  unreachable: { code: 4, meaning: 'a server of this host, or the gateway, is unreachable' },
} as const;

/** What the operator can do about a failure. */
const ADVICE: Partial<Record<HostFailureCode, string>> = {
  SOURCE_BUSY: 'wait until the session has ended its transaction, or give a longer --busy-wait',
  COLLATION_OUTDATED: 'run the commands that `doctor` prints',
  SOURCE_MISSING: 'run `list` to see the databases',
  DATABASE_NAME_HELD: 'run `list` to see its branch, and drop that branch first',
  INVALID_CALL: 'run the command with --help to see its options',
  PROOF_FAILED: "check the password and PgBouncer's log",
  POSTGRES_UNAVAILABLE:
    'start PostgreSQL, check POSTGRES_SOCKET_DIR and POSTGRES_PORT, run this command as its system user, and check that the role branchgate exists and that pg_hba.conf has the lines that `configuration` prints',
  POOLER_UNAVAILABLE:
    'start PgBouncer, check POOLER_SOCKET_DIR and POOLER_PORT, and run this command as its system user',
  RULES_NOT_APPLIED: 'run `doctor` to check the configuration',
  HOST_BUSY: 'try again shortly',
  PROJECT_BUSY: 'try again shortly',
  HOST_FULL: 'free disk space in the data directory',
};

/** The command line or the environment is invalid. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** The command is impossible in the present state, and has changed nothing. */
export class RefusedError extends Error {
  override readonly name = 'RefusedError';
}

/** The gateway is unreachable, or its response is no enrolment. */
export class GatewayError extends Error {
  override readonly name = 'GatewayError';
}

/** `doctor` has printed the problems; there is nothing to add. */
export class ProblemsFound extends Error {
  override readonly name = 'ProblemsFound';
}

/** One line: what is wrong, then what to do. Empty when it was already printed. */
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
  if (error instanceof RefusedError) return EXIT_CODES.refused.code;
  if (error instanceof GatewayError) return EXIT_CODES.unreachable.code;
  if (!(error instanceof HostError)) return EXIT_CODES.failed.code;
  if (error.code === 'INVALID_CALL') return EXIT_CODES.usage.code;
  if (error.code.endsWith('_UNAVAILABLE')) return EXIT_CODES.unreachable.code;
  return HOST_FAILURES[error.code] === 'refused' ? EXIT_CODES.refused.code : EXIT_CODES.failed.code;
}
