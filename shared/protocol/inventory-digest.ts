import type { MethodResult } from './operations.ts';

/** What a host holds of some projects, or what it should hold by the records. */
export type Holdings = Omit<MethodResult<'inventory.list'>, 'next'>;

/** What both sides compare; the name of a database is no part of it, because the records decide it. */
export type Compared = Pick<Holdings, 'projects' | 'snapshots'> & {
  branches: Pick<Holdings['branches'][number], 'project_id' | 'branch_id' | 'state'>[];
};

export interface GroupDigest {
  count: number;
  hash: string;
}

/** The group of a project: the first byte of its id. */
export const groupOf = (projectId: string): string => projectId.slice(0, 2);

/** @param hash of a text; both sides must have the same */
export async function digestGroups(
  { projects, branches, snapshots }: Compared,
  hash: (text: string) => string | Promise<string>,
): Promise<Record<string, GroupDigest>> {
  const lines = [
    ...projects.map(
      ({ project_id, access_revision, needs_tenant }) =>
        `${project_id} access ${access_revision}${needs_tenant ? ' without tenant' : ''}`,
    ),
    ...branches.map(({ project_id, branch_id, state }) => `${project_id} branch ${branch_id} ${state}`),
    ...snapshots.map(
      ({ project_id, snapshot_id, ready, independent }) =>
        `${project_id} snapshot ${snapshot_id} ${ready} ${independent}`,
    ),
  ].sort();
  const digests: Record<string, GroupDigest> = {};
  for (const [group, members] of Map.groupBy(lines, groupOf))
    digests[group] = { count: members.length, hash: await hash(members.join('\n')) };
  return digests;
}
