import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { readScript } from '../rows/run-script.ts';
import { runTrial, type TrialHost } from '../trials/run-trial.ts';

/**
 * Tries statements of a client on a copy, of which nothing is left with the report.
 * @throws HostError INVALID_CALL, STATEMENT_REFUSED for what is no trial at all; PROJECT_BUSY, HOST_BUSY, SOURCE_BUSY,
 *   SOURCE_MISSING, POOLER_UNAVAILABLE, HOST_FULL
 */
export async function tryStatements(
  host: TrialHost,
  params: Params<'try.run'>,
): Promise<MethodResult<'try.run'>> {
  const { try_id, project_id, wait } = params;
  const script = readScript(params);
  host.trials.begin(try_id, project_id, () => runTrial(host, params, script));
  return { report: await host.trials.readFirst(try_id, wait) };
}

export const readTrial = (
  { trials }: Pick<TrialHost, 'trials'>,
  { try_id, wait }: Params<'try.read'>,
): Promise<MethodResult<'try.read'>> => trials.read(try_id, wait);
