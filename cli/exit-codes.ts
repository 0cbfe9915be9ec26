import { type Command, CommanderError } from 'commander';
import { JobError, ResponseError } from '../client/response-error.ts';
import { FAILURES, type FailureCode } from '../shared/failures.ts';

/** The exit codes, which are part of the help, and the code of an error that has none of the API. */
export const EXIT_CODES = {
  ok: { code: 0, meaning: 'done', error: null },
  failed: { code: 1, meaning: 'failed', error: 'FAILED' },
  usage: { code: 2, meaning: 'wrong usage; nothing was done', error: 'USAGE' },
  notFound: { code: 3, meaning: 'not found', error: 'NOT_FOUND' },
  notSignedIn: { code: 4, meaning: 'not signed in', error: 'NOT_SIGNED_IN' },
  notAllowed: { code: 5, meaning: 'not allowed', error: 'NOT_ALLOWED' },
  conflict: { code: 6, meaning: 'conflict with the present state', error: 'CONFLICT' },
  limit: { code: 7, meaning: 'a limit is reached', error: 'LIMIT_REACHED' },
  away: { code: 8, meaning: 'the gateway or the database host is unavailable', error: 'UNAVAILABLE' },
  danger: { code: 9, meaning: 'a rehearsal or a trial found a danger', error: null },
  timedOut: { code: 124, meaning: 'timed out', error: 'TIMED_OUT' },
  // As a shell reports a program that it cannot start, or a command that a signal ends.
  notExecutable: { code: 126, meaning: 'the program cannot be executed', error: 'NOT_EXECUTABLE' },
  noProgram: { code: 127, meaning: 'the program was not found', error: 'NO_PROGRAM' },
  hungUp: { code: 129, meaning: 'its terminal was closed', error: 'INTERRUPTED' },
  interrupted: { code: 130, meaning: 'interrupted by Ctrl-C', error: 'INTERRUPTED' },
  terminated: { code: 143, meaning: 'terminated', error: 'INTERRUPTED' },
} as const;

export type ExitName = keyof typeof EXIT_CODES;

/** A command that cannot continue: what is wrong, then what to do. */
export class CommandError extends Error {
  override readonly name = 'CommandError';
  readonly exit: ExitName;

  constructor(exit: ExitName, message: string) {
    super(message);
    this.exit = exit;
  }
}

const EXIT_OF_STATUS: Record<number, ExitName> = {
  400: 'usage',
  401: 'notSignedIn',
  403: 'notAllowed',
  404: 'notFound',
  409: 'conflict',
  412: 'conflict',
  413: 'usage',
  422: 'usage',
  429: 'limit',
  502: 'away',
  503: 'away',
  504: 'away',
};

/** Codes that mean something else than their status. */
const EXIT_OF_CODE: Partial<Record<string, ExitName>> = {
  STATEMENT_REFUSED: 'failed',
  TIME_LIMIT_REACHED: 'timedOut',
  STORAGE_QUOTA_EXCEEDED: 'limit',
  CREDENTIALS_WRONG: 'notSignedIn',
  HOST_FULL: 'limit',
  QUOTA_ABOVE_SELF_SERVICE_CAP: 'limit',
  CONNECTION_ATTEMPTS_ABOVE_MAX: 'limit',
  SOURCE_UNSUITABLE: 'conflict',
  TIME_NOT_RECOVERABLE: 'conflict',
};

const exitOf = (status: number, code: string | null): ExitName =>
  (code === null ? undefined : EXIT_OF_CODE[code]) ?? EXIT_OF_STATUS[status] ?? 'failed';

/** How `fetch` reports that it got no response. */
const isUnreachable = (error: unknown): error is TypeError =>
  error instanceof TypeError && error.message === 'fetch failed';

const isTimeout = (error: unknown) => error instanceof Error && error.name === 'TimeoutError';

function exitNameOf(error: unknown): ExitName {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 'ok' : 'usage';
  if (error instanceof CommandError) return error.exit;
  if (error instanceof ResponseError) return exitOf(error.status, error.code);
  if (error instanceof JobError)
    return exitOf(FAILURES[error.code as FailureCode]?.status ?? 500, error.code);
  if (isUnreachable(error)) return 'away';
  return isTimeout(error) ? 'timedOut' : 'failed';
}

export const exitCodeOf = (error: unknown): number => EXIT_CODES[exitNameOf(error)].code;

/** What to do about a protected branch, by the command that was refused and takes no --confirm. */
const WITHOUT_CONFIRM: Partial<Record<string, string>> = {
  create:
    'Reset it with `branchgate branch reset`, or end its protection with `branchgate branch unprotect`.',
  delete: 'End its protection with `branchgate branch unprotect` first. main is never deleted.',
  extend: 'main never expires.',
  unprotect: 'main is always protected.',
  query: 'Change rows with `branchgate psql`, or on another branch.',
};

const takesConfirm = ({ options }: Command) => options.some(({ long }) => long === '--confirm');

/** The command that lists what was not found, by the `resource` of the failure. */
const LISTS: Partial<Record<string, string>> = {
  project: 'project list',
  branch: 'branch list',
  deleted_branch: 'branch list --status deleted',
  table: 'table list',
  snapshot: 'snapshot list',
  change: 'change list',
  network_rule: 'rule list',
  api_key: 'key list',
  trust: 'trust list',
  job: 'job list',
};

/** The option of `query` by the role that it takes. */
const OPTION_OF_ROLE: Partial<Record<string, string>> = { read_write: '--write', owner: '--owner' };

type Advice = (command: Command | undefined, fields: ResponseError['fields']) => string | undefined;

/** What to do, for failures whose message comes from the API and names no command or option. */
const ADVICE_OF_CODE: Partial<Record<string, Advice>> = {
  NOT_FOUND: (_command, { resource }) => {
    const list = LISTS[String(resource)];
    return list && `Run \`branchgate ${list}\`.`;
  },
  BRANCH_PROTECTED: (command) =>
    command && takesConfirm(command)
      ? 'Give its name with --confirm.'
      : WITHOUT_CONFIRM[command?.name() ?? ''],
  STATEMENT_REFUSED: (_command, { required_role: role, hint, statement }) => {
    const where = statement === undefined ? '' : `This is statement ${statement}. `;
    const option = OPTION_OF_ROLE[String(role)];
    const advice = option ? `Run it with ${option}.` : (hint ?? '');
    return `${where}${advice}`.trim() || undefined;
  },
  UNAUTHENTICATED: () =>
    process.env.BRANCHGATE_API_KEY || process.env.BRANCHGATE_TOKEN
      ? 'The token in BRANCHGATE_API_KEY or BRANCHGATE_TOKEN was rejected. Replace or unset it.'
      : 'Run `branchgate login`, or set BRANCHGATE_API_KEY.',
};

interface Detail {
  path: string;
  message: string;
}

/** What is wrong and what to do, for the command that failed. */
function adviceOf({ code, message, fields }: ResponseError, command?: Command) {
  const advice = ADVICE_OF_CODE[code ?? '']?.(command, fields);
  // The message of the API names a field that no command has.
  const isReplaced = advice !== undefined && code === 'BRANCH_PROTECTED';
  return { message: isReplaced ? 'The branch is protected.' : message, advice };
}

/** Options and arguments whose name is not that of the field which they send. */
const OF_FIELD: Partial<Record<string, string>> = {
  branch_name: '[name]',
  name_prefix: '[name]',
  cidr: '<network>',
  sql: '<sql>',
  ttl_seconds: '--ttl',
  lease_seconds: '--lease',
  expires_in_days: '--days',
  storage_quota_gib: '--quota',
  connection_attempts_per_minute: '--connection-attempts',
  source_branch_id: '--from',
  snapshot_id: '--snapshot',
  on_exists: '--if-exists',
  keep_tables: '--keep-table',
  cidrs: '--cidr',
  labels: '--label',
  params: '--param',
  against: '--against',
};

/** The option or argument of a command that a field of the API is about; the field itself if there is none. */
function optionOf(path: string, command?: Command): string {
  const [field = ''] = path.split('.');
  const flag = OF_FIELD[field] ?? `--${field.replaceAll('_', '-')}`;
  const found = command?.options.find(({ long }) => long === flag);
  if (found) return flag;
  const argument = command?.registeredArguments.find(
    (each) => flag.slice(1, -1) === each.name() || field === each.name(),
  );
  if (!argument) return path;
  return argument.required ? `<${argument.name()}>` : `[${argument.name()}]`;
}

const MISSING_COMMAND = 'A command is missing. Run this one with --help to see them.';

/**
 * What is wrong, then what to do, without a stack trace.
 * @param command that failed
 */
export function explain(error: unknown, command?: Command): string {
  if (error instanceof ResponseError) {
    const details = ((error.fields.details as Detail[] | undefined) ?? []).map(
      ({ path, message }) => `\n  ${optionOf(path, command)}: ${message}`,
    );
    const request = error.code === 'INTERNAL' && error.requestId ? ` Request ID: ${error.requestId}.` : '';
    const code = error.code === null ? '' : ` (${error.code})`;
    const { message, advice } = adviceOf(error, command);
    return `${message}${code}${details.join('')}${request}${advice ? ` ${advice}` : ''}`;
  }
  if (error instanceof JobError) return `${error.message} (${error.code}) Job: ${error.jobId}.`;
  if (isUnreachable(error)) {
    const { code = '' } = (error.cause ?? {}) as NodeJS.ErrnoException;
    return `The gateway is unreachable${code && ` (${code})`}. Check BRANCHGATE_URL and the network.`;
  }
  if (error instanceof CommanderError)
    return error.code === 'commander.help' ? MISSING_COMMAND : error.message.replace(/^error: /, '');
  if (isTimeout(error))
    return 'The command timed out. The operation may still be running: see `branchgate job list`.';
  return error instanceof Error ? error.message : String(error);
}

/** The error as `--json` prints it, in the form of the API's errors. */
export function errorRecord(error: unknown, command: Command): Record<string, unknown> {
  const { error: ownCode } = EXIT_CODES[exitNameOf(error)];
  if (error instanceof ResponseError) {
    const { message, advice } = adviceOf(error, command);
    return {
      ...error.fields,
      error: error.code ?? ownCode,
      message: advice ? `${message} ${advice}` : message,
    };
  }
  if (error instanceof JobError) return { error: error.code, message: error.message, job_id: error.jobId };
  return { error: ownCode, message: explain(error) };
}
