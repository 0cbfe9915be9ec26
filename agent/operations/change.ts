import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { changesOfMain } from '../changes/changes-of-main.ts';
import { requireRoom, stepsOf } from '../changes/plan.ts';
import { type ChangeHost, readingSignal } from '../changes/rehearse.ts';
import { toolStatements } from '../changes/tool-tables.ts';
import { digestAsLogin, digestSchema } from '../difference/schema/compare-schemas.ts';
import { withComparisonLogin } from '../difference/schema/comparison-login.ts';

/**
 * The steps of a text, with the rows that a migration tool has written in the branch, and the schema of the branch that they begin with.
 * @throws HostError INVALID_CALL for a text that is no change, and for one that is too long with these rows; PROJECT_BUSY, HOST_BUSY
 */
export const planChange = (
  host: ChangeHost,
  params: Params<'change.plan'>,
): Promise<MethodResult<'change.plan'>> =>
  host.readings.alone(params.project_id, () => planAlone(host, params));

async function planAlone(
  host: ChangeHost,
  { sql, branch, ...main }: Params<'change.plan'>,
): Promise<MethodResult<'change.plan'>> {
  const { project_id, database } = main;
  const given = stepsOf(sql);
  requireRoom(given);
  const databases = branch === null ? [database] : [database, branch];
  return withComparisonLogin(host, project_id, databases, async (login) => {
    const ofTool = branch === null ? [] : await toolStatements(host, login, database, branch);
    const steps = [...given, ...(ofTool.length > 0 ? stepsOf(ofTool.join(';')) : [])];
    requireRoom(steps);
    const main_changes = branch === null ? null : await changesOfMain(host, login, database, branch);
    return { steps, main_changes, schema: await digestAsLogin(host, login, main, readingSignal()) };
  });
}

/** @throws HostError PROJECT_BUSY, HOST_BUSY, and as `compareSchemas` */
export async function readChangeSchema(
  host: ChangeHost,
  main: Params<'change.schema'>,
): Promise<MethodResult<'change.schema'>> {
  const read = () => digestOfMain(host, main);
  return { schema: await host.readings.shared(main.project_id, main.database, read) };
}

const digestOfMain = (host: ChangeHost, { project_id, branch_id, database }: Params<'change.schema'>) =>
  digestSchema(host, project_id, { branch_id, database }, readingSignal());
