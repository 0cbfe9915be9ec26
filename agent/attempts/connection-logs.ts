import { currentPostgresLog } from '../logs/postgres-log.ts';
import type { AgentSettings } from '../settings.ts';

/** Somebody's attempt to log in to a branch over the network. */
export interface Attempt {
  login: string;
  database: string;
  address: string;
}

/** How one server's log tells of attempts. */
export interface ConnectionLog {
  name: 'postgres' | 'pooler';
  /** Where it is now; null while nobody knows. */
  locate: (settings: AgentSettings) => string | null;
  marks: readonly string[];
  /** The attempt that a line tells of. Lines carry text of strangers and of tenants: only the server's own form counts. */
  read: (line: string) => Attempt | null;
  /** Whether it tells of attempts that the rules refuse, too. */
  tellsOfOutsiders: boolean;
}

const LOGIN = /^u_[0-9a-f]{32}_(owner|rw|ro)$/;

/** What is used of a line of PostgreSQL's `jsonlog`. */
interface PostgresLine {
  user?: string;
  dbname?: string;
  remote_host?: string;
  error_severity?: string;
  state_code?: string;
  message?: string;
}

/**
 * The rules come before the password: whoever gets an answer to theirs, right or wrong, is admitted. Inside of a
 * JSON string the quotes of these marks would be escaped, so no text of a statement can bear one.
 */
const PASSWORD_RIGHT = '"message":"connection authenticated: ';
const PASSWORD_WRONG = '"state_code":"28P01"';

function readPostgresLine(line: string): Attempt | null {
  const { user, dbname, remote_host, error_severity, state_code, message } = parse(line);
  const told =
    (error_severity === 'LOG' && message?.startsWith('connection authenticated: ')) ||
    // A statement can raise 28P01 too, but nothing worse than an ERROR.
    (error_severity === 'FATAL' && state_code === '28P01');
  if (!told || !user || !dbname || !remote_host || remote_host === '[local]') return null;
  return LOGIN.test(user) ? { login: user, database: dbname, address: remote_host } : null;
}

function parse(line: string): PostgresLine {
  try {
    return JSON.parse(line);
  } catch {
    return {};
  }
}

/**
 * `<time> [<pid>] LOG C-0x<…>: <database>/<user>@<address>:<port> login attempt: db=… user=… tls=…`, written before
 * rules and password are looked at. Database and user are a stranger's text until they match; PgBouncer begins
 * what follows a line break in them with a tab. Sessions over its unix socket have `unix` for an address.
 */
const POOLER_LINE =
  /^[\d-]+ [\d:.]+ \S+ \[\d+\] LOG C-0x[0-9a-f]+: (db_[a-z0-9_-]+)\/(u_[0-9a-f]{32}_(?:owner|rw|ro))@\[?([0-9a-f.:]+?)\]?:\d+ login attempt: /;

function readPoolerLine(line: string): Attempt | null {
  const [, database, login, address] = POOLER_LINE.exec(line) ?? [];
  return database && login && address ? { database, login, address } : null;
}

export const CONNECTION_LOGS: readonly ConnectionLog[] = [
  {
    name: 'postgres',
    locate: currentPostgresLog,
    marks: [PASSWORD_RIGHT, PASSWORD_WRONG],
    read: readPostgresLine,
    tellsOfOutsiders: false,
  },
  {
    name: 'pooler',
    locate: ({ POOLER_LOG }) => POOLER_LOG,
    marks: [' login attempt: '],
    read: readPoolerLine,
    tellsOfOutsiders: true,
  },
];
