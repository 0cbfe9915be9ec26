import type { BranchgateClient, Schemas, WaitOptions } from './client.ts';
import { dataOf } from './response-error.ts';

const TRY = '/api/v1/projects/{project_id}/branches/{branch_ref}/try';

interface Tried {
  sql: string;
  params?: (string | number | boolean | null)[];
  /** Default: `read_write` for a caller who may change rows, otherwise `read_only`. */
  role?: 'read_only' | 'read_write' | 'owner' | undefined;
}

/**
 * What statements do to a copy of the branch, however long that takes.
 * @throws ResponseError, JobError
 */
export async function tryStatements(
  client: BranchgateClient,
  path: { project_id: string; branch_ref: string },
  { sql, params = [], role }: Tried,
  options: WaitOptions = {},
): Promise<Schemas['Trial']> {
  const signal = options.signal ?? null;
  const body = { sql, params, ...(role !== undefined && { role }) };
  const first = await client.api.POST(TRY, { params: { path }, body, signal });
  const found = await dataOf(Promise.resolve(first));
  if (first.response.status !== 202) return found as Schemas['Trial'];
  const { id: job_id } = await client.waitForJob((found as Schemas['Job']).id, options);
  const report = await dataOf(
    client.api.GET(`${TRY}/{job_id}`, { params: { path: { ...path, job_id } }, signal }),
  );
  return report as Schemas['Trial'];
}
