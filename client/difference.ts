import type { BranchgateClient, Schemas, WaitOptions } from './client.ts';
import { dataOf } from './response-error.ts';

const DIFF = '/api/v1/projects/{project_id}/branches/{branch_ref}/diff';

/** `against`: `parent`, a branch by name or ID, or the ID of a snapshot. */
interface Compared {
  against: string;
  schema?: boolean;
}

/**
 * The difference of a branch, however long the comparison takes.
 * @throws ResponseError, JobError
 */
export async function differenceOf(
  client: BranchgateClient,
  path: { project_id: string; branch_ref: string },
  { against, schema = false }: Compared,
  options: WaitOptions = {},
): Promise<Schemas['Difference']> {
  const query = { against, ...(schema && { schema: 'true' as const }) };
  const signal = options.signal ?? null;
  const first = await client.api.GET(DIFF, { params: { path, query }, signal });
  const found = await dataOf(Promise.resolve(first));
  if (first.response.status !== 202) return found as Schemas['Difference'];
  const { id: job_id } = await client.waitForJob((found as Schemas['Job']).id, options);
  const result = await dataOf(
    client.api.GET(DIFF, { params: { path, query: { ...query, job_id } }, signal }),
  );
  return result as Schemas['Difference'];
}
