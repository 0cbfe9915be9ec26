import { connect } from 'node:net';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { RuleSync } from '../access/sync-rules.ts';
import { socketOf } from '../pooler/admin-console.ts';
import { instancesNow } from '../pooler/restart-state.ts';
import { boundedSocket } from '../postgres/bounded-socket.ts';
import {
  AS_TEXT,
  backendPid,
  breakOff,
  type OwnSession,
  openSession,
  type Session,
} from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { runStatement } from '../postgres/run-statement.ts';
import { HostError, ofParameter } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { admitTenantCode, inBranch, type RowsHost } from '../rows/branch-session.ts';
import { inputOfQuery } from '../rows/client-query.ts';
import { RowTurns } from '../rows/row-turns.ts';
import { admitClient, fatal, loginOf, type SqlError, SqlRefusal, wrongPassword } from './admit-client.ts';
import { OpenClients } from './open-clients.ts';
import { Pace } from './pace.ts';
import { Replies, type Reply } from './reply.ts';

type Call = Params<'sql.run'>;
type Result = MethodResult<'sql.run'>;

/** How many requests run, and how many run or wait. `ofProject` is of a tenant. */
const TURNS = {
  running: { total: 24, reserved: 2, reservedBelow: 1, ofProject: 8, ofBranch: 4 },
  admitted: { total: 48, reserved: 12, reservedBelow: 2, ofProject: 24, ofBranch: 16 },
};

const CONNECT_WITHIN_MS = 5_000;
const STATEMENTS_WITHIN_MS = 30_000;
/** PostgreSQL answers a cancellation within this time, or nobody knows how the statement ended. */
const CANCELLED_WITHIN_MS = 2_000;

/** State of SQL over HTTP and WebSocket that outlives a request. */
export class SqlRequests {
  readonly turns = new RowTurns(TURNS);
  readonly replies = new Replies();
  readonly pace = new Pace();
  readonly clients = new OpenClients();
}

export interface SqlHost extends RowsHost {
  rules: RuleSync;
  sql: SqlRequests;
  log: Log;
}

/** SQLSTATE `too_many_connections`. */
const TOO_MANY = '53300';

const REFUSALS: Partial<Record<HostError['code'], string>> = {
  PROJECT_BUSY: TOO_MANY,
  HOST_BUSY: TOO_MANY,
  POOLER_UNAVAILABLE: '57P03',
  POSTGRES_UNAVAILABLE: '57P03',
  TIME_LIMIT_REACHED: '57014',
  INVALID_CALL: '22023',
};

/** Fields of PostgreSQL's error that a client gets: all that the protocol has. */
const ERROR_FIELDS = [
  ...['severity', 'code', 'detail', 'hint', 'position', 'internalPosition', 'internalQuery', 'where'],
  ...['schema', 'table', 'column', 'dataType', 'constraint', 'file', 'line', 'routine'],
] as const;

/** Characters. A tenant's code can raise an error of any length. */
const FIELD_LENGTH_MAX = 65_536;

/** @throws the error, if the client has no part in it */
function errorOf(error: unknown, call: Call): SqlError {
  if (error instanceof HostError) {
    const code = error.sqlstate ?? REFUSALS[error.code];
    const message =
      REFUSALS[error.code] === TOO_MANY ? 'too many requests of SQL over HTTP run: try again' : error.message;
    if (code !== undefined) return { severity: 'ERROR', code, message };
  }
  if (error instanceof SqlRefusal) return error.error;
  if (!(error instanceof Error)) throw error;
  const code = sqlState(error);
  if (!('severity' in error)) {
    if (['ENOENT', 'ECONNREFUSED'].includes(code ?? ''))
      return fatal('57P03', 'the pooler is starting or restarting: try again');
    if (error.message === 'timeout expired')
      return fatal('57P03', 'the pooler accepts no session: try again');
    if (error.message.startsWith('Connection terminated'))
      return fatal('08006', 'the connection with the database was lost: it is unknown what was committed');
    throw error;
  }
  // PgBouncer refuses a password by either.
  if (/password authentication failed|SASL authentication failed/.test(error.message))
    return wrongPassword(loginOf(call));
  if (/^no more connections allowed|^too many/.test(error.message)) return fatal('53300', error.message);
  const fields = ERROR_FIELDS.flatMap((field) => {
    const value = (error as unknown as Record<string, unknown>)[field];
    return value === undefined ? [] : [[field, String(value).slice(0, FIELD_LENGTH_MAX)] as const];
  });
  const message = error.message.slice(0, FIELD_LENGTH_MAX);
  return { message, code: code ?? 'XX000', ...Object.fromEntries(fields) };
}

/**
 * Runs statements of a client in a session of the branch's login through the pooler, and writes the reply. The session has
 * ended before the first part of the reply is sent, so a client that reads slowly holds none.
 * @throws HostError INTERNAL and failures that no client causes
 */
export async function runSql(host: SqlHost, call: Call): Promise<Result> {
  const started = performance.now();
  const decision = await admitClient(host, call, call.revision);
  if (decision.outcome === 'outdated') return { outcome: 'outdated', text: '', bytes: 0, reply_id: null };
  const { sql } = host;
  let failure: SqlError | null = decision.outcome === 'refused' ? decision.error : null;
  let reply = sql.replies.begin(decision.outcome === 'admitted' ? decision.tenant : call.project_id);
  let whole: ReturnType<Reply['finish']> = null;
  try {
    if (decision.outcome === 'admitted') {
      const leave = await sql.turns.enter(call.branch_id, decision.tenant);
      try {
        await (call.password === null
          ? runUndone(host, call, reply)
          : runPooled(host, call, reply, decision.tenant));
      } finally {
        leave();
      }
    }
    whole = reply.finish();
  } catch (error) {
    reply.close();
    failure = errorOf(error, call);
  }
  if (failure) {
    reply = sql.replies.begin(call.project_id);
    reply.add(JSON.stringify(failure));
    whole = reply.finish();
  }
  const reply_id = whole ? null : sql.replies.keep(reply);
  const { text } = whole ?? (await sql.replies.read(reply_id ?? '', 0));
  const bytes = whole?.bytes ?? reply.bytes;
  host.log('sql.run', {
    branch_id: call.branch_id,
    role: call.role,
    address: call.address,
    statements: call.statements.length,
    outcome: failure?.code ?? 'done',
    bytes,
    duration_ms: Math.round(performance.now() - started),
  });
  return { outcome: failure ? 'refused' : 'done', text, bytes, reply_id };
}

/** Runs the statements as the branch's login, through the pooler, as its other clients do. */
async function runPooled(host: SqlHost, call: Call, reply: Reply, tenant: string): Promise<void> {
  const { settings, sql } = host;
  const socket = socketOf(settings, instancesNow(settings).newClients);
  const stream = boundedSocket('sql');
  const session = await openSession({
    ...socket,
    user: loginOf(call),
    database: call.database,
    password: call.password ?? '',
    application_name: call.application_name,
    types: AS_TEXT,
    stream: () => stream,
    connectionTimeoutMillis: CONNECT_WITHIN_MS,
  });
  // A login that waits for older replies of its tenant would be out of time.
  sql.pace.limit(stream, tenant);
  let ended: SqlError | null = null;
  const end = (error: SqlError) => {
    ended = error;
    breakOff(session);
  };
  const leave = sql.clients.add({ client: call, end });
  const stopTimer = limitTime(session, `${socket.host}/.s.PGSQL.${socket.port}`, end);
  try {
    await runAll(session, call, reply);
    await session.end();
  } catch (error) {
    breakOff(session);
    if (ended) throw new SqlRefusal(ended);
    throw error;
  } finally {
    stopTimer();
    leave();
  }
}

/** Runs the statements as the query login, by which people and machines read with a token. Nothing of it lasts. */
async function runUndone(host: SqlHost, call: Call, reply: Reply): Promise<void> {
  let failed: unknown = null;
  await inBranch(host, call, 'query', async (session) => {
    await admitTenantCode(session);
    await runStatements(session, call, reply).catch((error) => {
      failed = error;
      throw error;
    });
  }).catch((error) => {
    // PostgreSQL's own error has more fields than that of `inBranch`.
    throw error instanceof HostError && error.code === 'STATEMENT_REFUSED' ? (failed ?? error) : error;
  });
}

/** Cancels what runs at the end of the time, and then ends the session. @returns stops that */
function limitTime(session: OwnSession, path: string, end: (error: SqlError) => void): () => void {
  const lose = () =>
    end(fatal('08007', 'the statements took too long, and it is unknown whether they were committed'));
  let timer = setTimeout(() => {
    sendCancellation(session, path);
    timer = setTimeout(lose, CANCELLED_WITHIN_MS);
  }, STATEMENTS_WITHIN_MS);
  return () => clearTimeout(timer);
}

/** `CancelRequest` (PostgreSQL documentation, 54.2.8). */
const CANCEL_REQUEST = 80_877_102;

function sendCancellation(session: OwnSession, path: string): void {
  const message = Buffer.alloc(16);
  const { secretKey } = session as unknown as { secretKey: number };
  const values = [message.length, CANCEL_REQUEST, backendPid(session), secretKey];
  for (const [at, value] of values.entries()) message.writeInt32BE(value, 4 * at);
  const socket = connect(path);
  socket.on('error', () => {});
  socket.end(message);
}

async function runAll(session: Session, call: Call, reply: Reply): Promise<void> {
  const { transaction } = call;
  if (transaction === null) return runStatements(session, call, reply);
  const { isolation, read_only, deferrable } = transaction;
  const modes = [
    ...(isolation === null ? [] : [`ISOLATION LEVEL ${isolation}`]),
    ...(read_only ? ['READ ONLY'] : []),
    ...(deferrable ? ['DEFERRABLE'] : []),
  ];
  await session.query(`BEGIN ${modes.join(', ')}`);
  await runStatements(session, call, reply);
  // A reply that is too large undoes the batch.
  reply.finish();
  await session.query('COMMIT');
}

async function runStatements(session: Session, call: Call, reply: Reply): Promise<void> {
  const isBatch = call.transaction !== null;
  if (isBatch) reply.add('{"results":[');
  for (const [at, { text, params }] of call.statements.entries()) {
    if (at > 0) reply.add(',');
    const values = params.map((value, index) => ofParameter(`params.${index}`, () => inputOfQuery(value)));
    await writeResult(session, { text, values }, call, reply);
    if (isBatch && session.getTransactionStatus() !== 'T')
      throw new HostError('STATEMENT_REFUSED', 'a statement of the batch has ended its transaction', {
        sqlstate: '25000',
      });
  }
  if (isBatch) reply.add(']}');
}

interface Field {
  name: string;
  dataTypeID: number;
  [more: string]: unknown;
}

async function writeResult(
  session: Session,
  { text, values }: { text: string; values: (string | null)[] },
  { raw_text, row_arrays }: Call,
  reply: Reply,
): Promise<void> {
  let columns: { key: string; cell: (text: string) => string }[] | null = null;
  reply.add('{"rows":[');
  let separator = '';
  const add = (row: (string | null)[], fields: readonly Field[]) => {
    columns ??= fields.map(({ name, dataTypeID }) => ({
      key: row_arrays ? '' : `${JSON.stringify(name)}:`,
      cell: raw_text ? JSON.stringify : (CELLS[dataTypeID] ?? JSON.stringify),
    }));
    const cells = columns.map(({ key, cell }, at) => key + (row[at] == null ? 'null' : cell(row[at])));
    reply.add(separator + (row_arrays ? `[${cells.join(',')}]` : `{${cells.join(',')}}`));
    separator = ',';
    return true;
  };
  const outcome = await runStatement(session, text, values, add as never, { untilFull: false });
  const fields = (outcome.fields as unknown as Field[]).map((field) => ({
    name: field.name,
    ...Object.fromEntries(SIZES.map((name) => [name, field[name]])),
    format: 'text',
  }));
  const { command, rowCount } = outcome;
  reply.add(`],${JSON.stringify({ command, rowCount, rowAsArray: row_arrays, fields }).slice(1)}`);
}

const SIZES = ['tableID', 'columnID', 'dataTypeID', 'dataTypeSize', 'dataTypeModifier'] as const;

const number = (text: string) => (Number.isFinite(Number(text)) ? text : JSON.stringify(text));
const json = (text: string) => text;

/** JSON of a cell of these types, by OID: boolean, int2, int4, float4, float8, json, jsonb. All others are text. */
const CELLS: Record<number, (text: string) => string> = {
  16: (text) => String(text === 't'),
  21: number,
  23: number,
  700: number,
  701: number,
  114: json,
  3802: json,
};
