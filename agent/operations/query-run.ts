import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { admitTenantCode, inBranch } from '../rows/branch-session.ts';
import { inputOfQuery, typeNames } from '../rows/query-values.ts';
import { type QueryRun, runStatement } from '../rows/run-statement.ts';

/** Ends a statement that only reads, when no more of its rows fit into the message. */
class Enough extends Error {
  readonly run: QueryRun;

  constructor(run: QueryRun) {
    super('no more rows fit into the message');
    this.run = run;
  }
}

const MODES = { read_only: 'query', read_write: 'change' } as const;

/**
 * Runs one statement of a client in a transaction of its own. It is sent by the extended protocol, in which a text has one statement.
 * @throws HostError INVALID_CALL, STATEMENT_REFUSED, HOST_TIMEOUT, HOST_BUSY, PROJECT_BUSY
 */
export async function runQuery(host: Host, params: Params<'query.run'>): Promise<MethodResult<'query.run'>> {
  const values = params.params.map(inputOfQuery);
  try {
    return await inBranch(host, params, MODES[params.role], async (session) => {
      await admitTenantCode(session);
      const run = await runStatement(session, params.sql, values, {
        onFull: (partial) => {
          if (params.role === 'read_only') throw new Enough(partial);
        },
      });
      return resultOf(run, await typeNames(session, run.fields));
    });
  } catch (error) {
    if (!(error instanceof Enough)) throw error;
    const { run } = error;
    // The session of the statement has ended.
    const names = await inBranch(host, params, 'query', (session) => typeNames(session, run.fields));
    return resultOf({ ...run, rowCount: null }, names);
  }
}

const resultOf = (
  { fields, rows, hasMore, command, rowCount }: QueryRun,
  types: readonly string[],
): MethodResult<'query.run'> => ({
  columns: fields.map(({ name }, at) => ({ name, type: types[at] ?? '' })),
  rows,
  has_more: hasMore,
  command,
  row_count: rowCount,
});
