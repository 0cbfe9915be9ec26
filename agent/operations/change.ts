import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { changesOfMain } from '../changes/base.ts';
import { stepsOf } from '../changes/plan.ts';
import { atRest, type ChangeHost } from '../changes/rehearse.ts';
import { digestSchema } from '../difference/schema/compare-schemas.ts';

/**
 * The steps of a text, and the schema of the branch that they begin with.
 * @throws HostError INVALID_CALL for a text that is no change
 */
export async function planChange(
  host: ChangeHost,
  { sql, branch, ...main }: Params<'change.plan'>,
): Promise<MethodResult<'change.plan'>> {
  const steps = stepsOf(sql);
  const main_changes =
    branch === null ? null : await changesOfMain(host, main.project_id, main.database, branch);
  return { steps, main_changes, ...(await readChangeSchema(host, main)) };
}

export async function readChangeSchema(
  host: ChangeHost,
  { project_id, branch_id, database }: Params<'change.schema'>,
): Promise<MethodResult<'change.schema'>> {
  return { schema: await digestSchema(host, project_id, { branch_id, database }, atRest()) };
}
