import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { changesOfMain } from '../changes/base.ts';
import { stepsOf } from '../changes/plan.ts';
import { atRest, type ChangeHost } from '../changes/rehearse.ts';
import { toolStatements } from '../changes/tool-tables.ts';
import { digestSchema } from '../difference/schema/compare-schemas.ts';

/**
 * The steps of a text, with the rows that a migration tool has written in the branch, and the schema of the branch that they begin with.
 * @throws HostError INVALID_CALL for a text that is no change
 */
export async function planChange(
  host: ChangeHost,
  { sql, branch, ...main }: Params<'change.plan'>,
): Promise<MethodResult<'change.plan'>> {
  const { project_id, database } = main;
  const ofTool = branch === null ? [] : await toolStatements(host, project_id, database, branch);
  const steps = [...stepsOf(sql), ...(ofTool.length > 0 ? stepsOf(ofTool.join(';')) : [])];
  const main_changes = branch === null ? null : await changesOfMain(host, project_id, database, branch);
  return { steps, main_changes, ...(await readChangeSchema(host, main)) };
}

export async function readChangeSchema(
  host: ChangeHost,
  { project_id, branch_id, database }: Params<'change.schema'>,
): Promise<MethodResult<'change.schema'>> {
  return { schema: await digestSchema(host, project_id, { branch_id, database }, atRest()) };
}
