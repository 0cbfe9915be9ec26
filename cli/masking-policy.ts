import type { BranchgateClient, Schemas } from '../client/client.ts';
import { dataOf } from '../client/response-error.ts';
import { CommandError } from './exit-codes.ts';
import { readText } from './read-text.ts';

/** What a file has of a policy. The other fields of a printed record are left out. @throws CommandError */
export async function readPolicy(file: string) {
  const source = await readText(file, `The policy ${file}`);
  let policy: unknown;
  try {
    policy = JSON.parse(source);
  } catch {
    throw new CommandError('usage', `The policy ${file} is not valid JSON.`);
  }
  if (typeof policy !== 'object' || policy === null || !('rules' in policy))
    throw new CommandError(
      'usage',
      `The policy ${file} has no rules. It must be {"rules": […], "unlisted": …}.`,
    );
  const { version, etag, changed_by, changed_at, problems, suggestions, ...body } =
    policy as Schemas['ComparedMaskingPolicy'];
  return body;
}

export type MaskingCheck = Schemas['MaskingCheck'];

/**
 * Compares a policy with a branch as it is now.
 * @param file null: the policy of the project
 * @throws CommandError, ResponseError
 */
export async function checkMasking(
  { api }: BranchgateClient,
  path: { project_id: string; branch_ref: string },
  file: string | null,
): Promise<MaskingCheck> {
  const body = file === null ? {} : await readPolicy(file);
  const check = '/api/v1/projects/{project_id}/branches/{branch_ref}/masking/check';
  return dataOf(api.POST(check, { params: { path }, body }));
}

/** What is not covered, a line each. */
export const uncoveredLines = ({ problems }: Pick<MaskingCheck, 'problems'>): string[] =>
  problems.map(({ table, column, reason }) => `${column === null ? table : `${table}.${column}`}: ${reason}`);

/** What no policy masks. */
const SCHEMA_STAYS =
  'Comments, labels of enumerations, texts of functions, defaults and bounds of partitions are schema, and stay.';

/** The result in a sentence, with what to do. */
export function checkSentence({ branch_name, covered, problems }: MaskingCheck): string {
  if (covered) return `The masking policy covers ${branch_name}. ${SCHEMA_STAYS}`;
  const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  return `The masking policy does not cover ${branch_name} (${count}). Add rules for these columns, or correct those that do not fit.`;
}
