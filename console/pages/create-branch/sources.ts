import type { Schemas } from '../../../client/client.ts';
import { type BranchNode, treeOf } from '../branches/branch-rows.ts';

type Branch = Schemas['Branch'];

const INDENT = '\u00a0\u00a0\u00a0\u00a0';

const activeOf = (nodes: readonly BranchNode[], depth: number): { branch: Branch; depth: number }[] =>
  nodes.flatMap(({ branch, children }) =>
    branch.status === 'active'
      ? [{ branch, depth }, ...activeOf(children, depth + 1)]
      : activeOf(children, depth),
  );

/** The branches that can be cloned, each below its nearest ancestor among them, with labels that show the tree. */
export const sourcesOf = (branches: readonly Branch[]): { branch: Branch; label: string }[] =>
  activeOf(treeOf(branches), 0).map(({ branch, depth }) => ({
    branch,
    // An option shows text only, and no plain space at its beginning.
    label: INDENT.repeat(depth) + branch.branch_name,
  }));
