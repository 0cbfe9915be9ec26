import { AGENT_ADDRESS } from '../postgres/connect.ts';
import type { AgentSettings } from '../process/settings.ts';
import { currentPostgresLog, postgresLogsBetween } from './postgres-log.ts';

/** An attempt to log in to a branch over the network. */
export interface Attempt {
  login: string;
  database: string;
  address: string;
}

/** How one server logs attempts. */
export interface ConnectionLog {
  name: 'postgres' | 'pooler';
  /** The log's present path; null while it is unknown. */
  locate: (settings: AgentSettings) => string | null;
  /** Logs that the server began between these two. */
  between?: (from: string, to: string) => readonly string[];
  /** Every line of interest contains one of these. */
  marks: readonly string[];
  /**
   * The attempt in a line. Lines contain text chosen by clients, so only the server's own format is accepted.
   */
  read: (line: string) => Attempt | null;
  /** Whether attempts that the rules reject are logged too. */
  includesRejected: boolean;
}

const LOGIN = /^u_[0-9a-f]{32}_(owner|rw|ro|query)$/;

/** The fields used of a line of PostgreSQL's `jsonlog`. */
interface PostgresLine {
  user?: string;
  dbname?: string;
  remote_host?: string;
  error_severity?: string;
  state_code?: string;
  message?: string;
}

/**
 * PostgreSQL checks the rules before the password, so a client whose password was checked is admitted by the
 * rules. Quotes are escaped inside a JSON string, so the text of a statement cannot contain these marks.
 */
const PASSWORD_RIGHT = '"message":"connection authenticated: ';
const PASSWORD_WRONG = '"state_code":"28P01"';

function readPostgresLine(line: string): Attempt | null {
  const { user, dbname, remote_host, error_severity, state_code, message } = parse(line);
  const isAttempt =
    (error_severity === 'LOG' && message?.startsWith('connection authenticated: ')) ||
    // A statement can raise 28P01 too, but only with severity ERROR.
    (error_severity === 'FATAL' && state_code === '28P01');
  // Attempts over WebSocket are counted by the agent, which knows their addresses.
  const isOwn = remote_host === '[local]' || remote_host === AGENT_ADDRESS;
  if (!isAttempt || !user || !dbname || !remote_host || isOwn) return null;
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
 * `<time> [<pid>] LOG C-0x<…>: <database>/<user>@<address>:<port> login attempt: db=… user=… tls=…`, written
 * before rules and password are checked. Database and user are unchecked client input until they match; PgBouncer
 * indents the text after a line break in them with a tab. Sessions over its unix socket have the address `unix`.
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
    between: postgresLogsBetween,
    marks: [PASSWORD_RIGHT, PASSWORD_WRONG],
    read: readPostgresLine,
    includesRejected: false,
  },
  {
    name: 'pooler',
    locate: ({ POOLER_LOG }) => POOLER_LOG,
    marks: [' login attempt: '],
    read: readPoolerLine,
    includesRejected: true,
  },
];
