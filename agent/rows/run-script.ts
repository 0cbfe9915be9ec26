import type { BranchRole } from '../../shared/branch/login.ts';
import { QUERY_STATEMENTS_MAX } from '../../shared/limits.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Session } from '../postgres/connect.ts';
import { runStatement } from '../postgres/run-statement.ts';
import { HostError, ofParameter } from '../process/host-error.ts';
import {
  admitTenantCode,
  type BranchDatabase,
  inBranch,
  type RowsHost,
  type SessionMode,
} from './branch-session.ts';
import { inputOfQuery, QueryRows, RESULT_BYTES, typeNames } from './client-query.ts';
import { type Statement, splitStatements } from './split-statements.ts';

/** The statements of a client, which run in one transaction. */

const MODES: Record<BranchRole, SessionMode> = {
  read_only: 'query',
  read_write: 'script',
  owner: 'owner_script',
};

/** Statements share a message. One that comes before others gets a part of it at most. */
const PARTS = 10;

const BEGIN = /^(?:begin|start transaction)(?: work| transaction)?$/;
const END = /^(commit|end|rollback|abort)(?: work| transaction)?$/;
const CONTROL =
  /^(?:begin|start transaction|commit|end|rollback|abort|savepoint|release|prepare transaction)\b/;
/** Command tags of the same statements. */
const CONTROL_TAG = /^(?:BEGIN|START|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|PREPARE TRANSACTION)/;
/** SQLSTATE `invalid_transaction_state`. */
const OF_TRANSACTION = '25000';

const controlRefused = (statement?: number) =>
  new HostError(
    'STATEMENT_REFUSED',
    'all statements are one transaction: only BEGIN before the first and COMMIT or ROLLBACK after the last are accepted',
    { sqlstate: OF_TRANSACTION, statement },
  );

export interface Script {
  role: BranchRole;
  statements: readonly Statement[];
  /** Of a text with one statement. */
  values: (string | null)[];
  /** Whether a `BEGIN` comes before them. */
  skipped: number;
  /** The text ends with ROLLBACK. */
  isUndone: boolean;
}

/**
 * A `BEGIN` and a `COMMIT` around the statements say what holds anyway. Others would end the transaction that
 * keeps a query from writing, and that makes all of a change or nothing.
 */
function partsOf(sql: string): Pick<Script, 'statements' | 'skipped' | 'isUndone'> {
  const statements = splitStatements(sql);
  if (statements.length > QUERY_STATEMENTS_MAX)
    throw new HostError(
      'INVALID_CALL',
      `has ${statements.length} statements, of which ${QUERY_STATEMENTS_MAX} can run together`,
      { path: 'sql' },
    );
  const [, end] = END.exec(statements.at(-1)?.start ?? '') ?? [];
  const first = BEGIN.test(statements[0]?.start ?? '') ? 1 : 0;
  const last = end === undefined ? statements.length : statements.length - 1;
  const refused = statements.findIndex(({ start }, at) => at >= first && at < last && CONTROL.test(start));
  if (refused !== -1) throw controlRefused(statements.length > 1 ? refused : undefined);
  const run = statements.slice(first, last);
  // A text without a statement is one, too, and has no result.
  return {
    statements: run.length === 0 ? [{ text: '', start: '' }] : run,
    skipped: first,
    isUndone: end === 'rollback' || end === 'abort',
  };
}

/** An error of one of several statements gets its index. */
const numbered = (error: unknown, { statements, skipped }: Script, at: number): unknown =>
  error instanceof Error && statements.length > 1 ? Object.assign(error, { statement: at + skipped }) : error;

/** @throws HostError INVALID_CALL, STATEMENT_REFUSED for statements that would end the transaction */
export function readScript({
  role,
  sql,
  params,
}: Pick<Params<'query.run'>, 'role' | 'sql' | 'params'>): Script {
  const parts = partsOf(sql);
  if (parts.statements.length > 1 && params.length > 0)
    throw new HostError('INVALID_CALL', 'belong to one statement, and the text has several', {
      path: 'params',
    });
  const values = params.map((value, at) => ofParameter(`params.${at}`, () => inputOfQuery(value)));
  return { role, ...parts, values };
}

type Results = MethodResult<'query.run'>['results'];

interface Around {
  /** Called in the transaction before code of the tenant runs. */
  begin?: (session: Session) => Promise<void>;
  /** Called after the last statement, while the transaction has all of its locks. */
  end?: () => Promise<void>;
  /** Bytes of all results in JSON. */
  room?: number;
}

/** @throws HostError STATEMENT_REFUSED, TIME_LIMIT_REACHED, HOST_BUSY, PROJECT_BUSY */
export function runScript(
  host: RowsHost,
  branch: BranchDatabase,
  script: Script,
  { begin = async () => {}, end = async () => {}, room = RESULT_BYTES }: Around = {},
): Promise<Results> {
  const { role, statements, values } = script;
  const untilFull = role === 'read_only';
  return inBranch(host, branch, MODES[role], async (session, { undo }) => {
    await begin(session);
    await admitTenantCode(session);
    if (script.isUndone) undo();
    const results: Results = [];
    let left = room;
    for (const [at, { text }] of statements.entries()) {
      const others = statements.length - at;
      const found = new QueryRows(Math.floor(left / Math.min(others, PARTS)));
      const add: Parameters<typeof runStatement>[3] = (row, columns) => found.add(row, columns);
      const result = await runStatement(session, text, values, add, { untilFull }).then(
        async (outcome) => {
          requireTransaction(session, outcome.command);
          return resultOf(found, outcome, await typeNames(session, outcome.fields));
        },
        (error) => Promise.reject(numbered(error, script, at)),
      );
      results.push(result);
      left -= found.bytes;
    }
    await end();
    return results;
  });
}

/** The text of a statement is not trusted to say what it is: PostgreSQL does. @throws HostError */
function requireTransaction(session: Session, command: string | null): void {
  const isInside = session.getTransactionStatus() === 'T';
  if (!isInside || (command !== null && CONTROL_TAG.test(command))) throw controlRefused();
}

type Outcome = Awaited<ReturnType<typeof runStatement>>;

function resultOf({ rows, hasMore }: QueryRows, outcome: Outcome, types: readonly string[]) {
  const { fields, command, rowCount } = outcome;
  return {
    columns: fields.map(({ name }, at) => ({ name, type: types[at] ?? '' })),
    rows,
    has_more: hasMore,
    command,
    row_count: rowCount,
  };
}
