import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { NOT_EMPTY } from '../../shared/protocol/row-operations.ts';
import type { Session } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';
import type { RowsHost } from '../rows/branch-session.ts';
import { readScript, runScript } from '../rows/run-script.ts';
import { isEmptyDatabase } from '../transfer/probe.ts';

/**
 * Runs statements of a client in one transaction.
 * @throws HostError INVALID_CALL, STATEMENT_REFUSED, TIME_LIMIT_REACHED, HOST_BUSY, PROJECT_BUSY
 */
export async function runQuery(
  host: RowsHost,
  params: Params<'query.run'>,
): Promise<MethodResult<'query.run'>> {
  const begin = async (session: Session) => {
    if (params.only_if_empty && !(await isEmptyDatabase(session)))
      throw new HostError('STATEMENT_REFUSED', 'the branch is not empty', { sqlstate: NOT_EMPTY });
  };
  return { results: await runScript(host, params, readScript(params), { begin }) };
}
