import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { inBranch } from '../../app/resources.ts';
import type { Place } from './row-source.ts';
import type { Staged } from './staged.ts';

/** Saves all staged changes. @returns those that conflict with what somebody else changed */
export async function saveStaged(
  { projectId, branch, schema, table }: Place,
  primaryKey: readonly string[],
  staged: Staged,
): Promise<{ saved: number; left: Staged }> {
  const { path } = inBranch(projectId, branch);
  const params = { path: { ...path, table }, query: { schema } };
  const rows = '/api/v1/projects/{project_id}/branches/{branch_ref}/tables/{table}/rows' as const;
  const primary_key = [...primaryKey];
  for (const { id, original, values, isDeleted } of Object.values(staged)) {
    if (id === null) continue;
    const key = id.map(String);
    if (isDeleted) await dataOf(api.DELETE(rows, { params, body: { primary_key, ids: [key] } }));
    else
      for (const [column, value] of Object.entries(values))
        await dataOf(
          api.PATCH(rows, { params, body: { primary_key, id: key, column, value, expected: original[column] ?? null } }),
        );
  }
  return { saved: Object.keys(staged).length, left: {} };
}
