import type { BranchgateClient, Schemas, WaitOptions } from './client.ts';
import { dataOf } from './response-error.ts';

const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';
const DIFF = `${BRANCH}/diff` as const;
const PREVIEW = `${BRANCH}/reset/preview` as const;

interface Path {
  project_id: string;
  branch_ref: string;
}

/** `against`: `parent`, a branch by name or ID, or the ID of a snapshot. */
interface Compared {
  against: string;
  schema?: boolean;
}

type Asked<T> = (query: { job_id?: string }) => Promise<{ data: T | Schemas['Job']; isJob: boolean }>;

/** Asks, waits for the job that the request may have become, and asks for its result. */
async function resultOf<T>(client: BranchgateClient, options: WaitOptions, ask: Asked<T>): Promise<T> {
  const first = await ask({});
  if (!first.isJob) return first.data as T;
  const { id: job_id } = await client.waitForJob((first.data as Schemas['Job']).id, options);
  return (await ask({ job_id })).data as T;
}

const inSchema = (schema: boolean) => schema && { schema: 'true' as const };

/**
 * The difference of a branch, however long the comparison takes.
 * @throws ResponseError, JobError
 */
export const differenceOf = (
  client: BranchgateClient,
  path: Path,
  { against, schema = false }: Compared,
  options: WaitOptions = {},
): Promise<Schemas['Difference']> =>
  resultOf(client, options, async (job) => {
    const query = { against, ...inSchema(schema), ...job };
    const answer = await client.api.GET(DIFF, { params: { path, query }, signal: options.signal ?? null });
    const data = await dataOf<Schemas['Difference'] | Schemas['Job']>(Promise.resolve(answer));
    return { data, isJob: answer.response.status === 202 };
  });

/**
 * Previews a reset of the branch to an earlier time.
 * @param at ISO 8601
 * @throws ResponseError, JobError
 */
export const resetPreviewOf = (
  client: BranchgateClient,
  path: Path,
  { at, schema = false }: { at: string; schema?: boolean },
  options: WaitOptions = {},
): Promise<Schemas['ResetPreview']> =>
  resultOf(client, options, async (job) => {
    const query = { at, ...inSchema(schema), ...job };
    const answer = await client.api.GET(PREVIEW, { params: { path, query }, signal: options.signal ?? null });
    const data = await dataOf<Schemas['ResetPreview'] | Schemas['Job']>(Promise.resolve(answer));
    return { data, isJob: answer.response.status === 202 };
  });
