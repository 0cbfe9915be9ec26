import { expect, test } from 'vitest';
import type { Schemas } from '../../client/client.ts';
import { sourcesOf } from '../../console/pages/branches/branch-rows.ts';

const branch = (id: string, parent: string | null, status = 'active') =>
  ({
    id,
    branch_name: id,
    parent_branch_id: parent,
    status,
    is_default: parent === null,
  }) as Schemas['Branch'];

test('branches are indented below what they were cloned from', () => {
  const branches = [
    branch('a-child', 'pr-1'),
    branch('main', null),
    branch('of-expired', 'old'),
    branch('old', 'main', 'expired'),
    branch('pr-1', 'main'),
    branch('z-grandchild', 'a-child'),
  ];
  expect(sourcesOf(branches).map(({ label }) => label.replaceAll('\u00a0', '.'))).toEqual([
    'main',
    '....of-expired',
    '....pr-1',
    '........a-child',
    '............z-grandchild',
  ]);
});
