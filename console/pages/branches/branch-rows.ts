import type { Schemas } from '../../../client/client.ts';

type BranchRecord = Schemas['Branch'];

/** A branch with those that were cloned from it. */
export interface BranchNode {
  branch: BranchRecord;
  children: BranchNode[];
}

/**
 * The branches as a tree by their parents. The children of a deleted branch move up to the nearest one that
 * exists.
 */
export function treeOf(branches: readonly BranchRecord[]): BranchNode[] {
  const nodes = new Map(branches.map((branch) => [branch.id, { branch, children: [] } as BranchNode]));
  const roots: BranchNode[] = [];
  for (const node of nodes.values()) {
    const { parent_branch_id: parentId } = node.branch;
    const parent = parentId === null ? undefined : nodes.get(parentId);
    (parent ? parent.children : roots).push(node);
  }
  // Without its parent, a branch belongs to main, from which everything in a project descends.
  const main = roots.find(({ branch }) => branch.is_default);
  if (!main) return roots;
  main.children.push(...roots.filter((node) => node !== main));
  return [main];
}

/** Whether a branch has what a person typed: a part of its name, of a label, or `name=value`. */
function matches({ branch_name, labels }: BranchRecord, wanted: string): boolean {
  const words = [branch_name, ...Object.entries(labels).map(([name, value]) => `${name}=${value}`)];
  return words.some((word) => word.toLowerCase().includes(wanted.toLowerCase()));
}

/** The tree without what does not match, except the ancestors of what does. */
export const filtered = (nodes: readonly BranchNode[], wanted: string): BranchNode[] =>
  nodes.flatMap((node) => {
    const children = filtered(node.children, wanted);
    return children.length > 0 || matches(node.branch, wanted) ? [{ ...node, children }] : [];
  });

/** When a branch stops to accept connections or is deleted, whichever comes first. */
export function endOf(branch: BranchRecord): { at: string; what: 'expires' | 'lease' | 'deleted' } | null {
  const ends = (
    [
      ['deleted', branch.status === 'expired' ? branch.deletes_at : null],
      ['expires', branch.status === 'expired' ? null : branch.expires_at],
      ['lease', branch.lease_ends_at],
    ] as const
  ).flatMap(([what, at]) => (at === null ? [] : [{ what, at }]));
  return ends.reduce<(typeof ends)[number] | null>(
    (first, end) => (first === null || end.at < first.at ? end : first),
    null,
  );
}

/** Branches that would free a place if they were deleted, those with the least left of their life first. */
export const freeable = (branches: readonly BranchRecord[]): BranchRecord[] =>
  branches
    .filter((branch) => !branch.protected && ['creating', 'active', 'expired'].includes(branch.status))
    .sort((one, other) => (endOf(one)?.at ?? '9').localeCompare(endOf(other)?.at ?? '9'));

const INDENT = '\u00a0\u00a0\u00a0\u00a0';

const activeOf = (nodes: readonly BranchNode[], depth: number): { branch: BranchRecord; depth: number }[] =>
  nodes.flatMap(({ branch, children }) =>
    branch.status === 'active'
      ? [{ branch, depth }, ...activeOf(children, depth + 1)]
      : activeOf(children, depth),
  );

/**
 * The branches that can be cloned, each below its nearest ancestor among them, with labels that show the
 * tree.
 */
export const sourcesOf = (branches: readonly BranchRecord[]): { branch: BranchRecord; label: string }[] =>
  activeOf(treeOf(branches), 0).map(({ branch, depth }) => ({
    branch,
    // An option shows text only, and no plain space at its beginning.
    label: INDENT.repeat(depth) + branch.branch_name,
  }));
