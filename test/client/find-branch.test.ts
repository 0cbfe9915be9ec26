import { expect, test } from 'vitest';
import { createClient } from '../../client/client.ts';
import { findBranch } from '../../client/find-branch.ts';

const branches = [
  { id: '018f0000-0000-7000-8000-000000000001', branch_name: 'main' },
  { id: '018f0000-0000-7000-8000-000000000002', branch_name: 'pr-1' },
];

const clientWith = (response: () => Response) =>
  createClient({ url: 'https://gateway.test', retryForSeconds: 0, fetch: async () => response() });

test.each([
  ['pr-1', branches[1]],
  [branches[0]?.id ?? '', branches[0]],
  ['pr', null],
])('the branch %s', async (reference, expected) => {
  const client = clientWith(() => Response.json({ branches }));
  expect(await findBranch(client, 'p', reference)).toEqual(expected);
});

test('a refusal is thrown', async () => {
  const client = clientWith(() => Response.json({ error: 'FORBIDDEN' }, { status: 403 }));
  await expect(findBranch(client, 'p', 'pr-1')).rejects.toMatchObject({ code: 'FORBIDDEN' });
});
