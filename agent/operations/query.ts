import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { runStatement } from '../postgres/run-statement.ts';
import { ofParameter } from '../process/host-error.ts';
import type { RowsHost } from '../rows/branch-session.ts';
import { admitTenantCode, inBranch } from '../rows/branch-session.ts';
import { inputOfQuery, QueryRows, typeNames } from '../rows/client-query.ts';

/** Ends a statement that only reads, when no more of its rows fit into the message. */
class Enough extends Error {}

const MODES = { read_only: 'query', read_write: 'change' } as const;

/**
 * Runs one statement of a client in a transaction of its own.
 * @throws HostError INVALID_CALL, STATEMENT_REFUSED, TIME_LIMIT_REACHED, HOST_BUSY, PROJECT_BUSY
 */
export async function runQuery(
  host: RowsHost,
  params: Params<'query.run'>,
): Promise<MethodResult<'query.run'>> {
  const { role, sql } = params;
  const values = params.params.map((value, at) => ofParameter(`params.${at}`, () => inputOfQuery(value)));
  const found = new QueryRows();
  try {
    return await inBranch(host, params, MODES[role], async (session) => {
      await admitTenantCode(session);
      const { fields, command, rowCount } = await runStatement(session, sql, values, (row, columns) => {
        if (!found.add(row, columns) && role === 'read_only') throw new Enough();
      });
      found.fields = fields;
      return { ...resultOf(found, await typeNames(session, fields)), command, row_count: rowCount };
    });
  } catch (error) {
    if (!(error instanceof Enough)) throw error;
    // The session of the statement has ended. Without a place for another one, the result has no names of
    // types: a refusal would mean that nothing was run.
    const types = await inBranch(host, params, 'query', (session) => typeNames(session, found.fields)).catch(
      () => [],
    );
    return { ...resultOf(found, types), command: null, row_count: null };
  }
}

const resultOf = ({ fields, rows, hasMore }: QueryRows, types: readonly string[]) => ({
  columns: fields.map(({ name }, at) => ({ name, type: types[at] ?? '' })),
  rows,
  has_more: hasMore,
});
