import { beforeAll, expect, test } from 'vitest';
import type { Api, ProjectBody } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { attempt, attempts, OUTSIDE, type Target, targetOfUrl, tried } from '../support/host/attempts.ts';
import { ownerOf } from '../support/tenants.ts';

let api: Api;
let project: ProjectBody;

beforeAll(async () => {
  api = await ownerOf('connection-limits');
  project = await api.project('Limits');
  await api.branch(project.id, 'other');
});

async function targets(branch: string): Promise<[direct: Target, pooled: Target]> {
  const { direct_url, database_url } = await api.credentials(project.id, branch);
  return [targetOfUrl(direct_url), targetOfUrl(database_url)];
}

test('an address is blocked after 50 attempts a minute on one branch, over both ports', async () => {
  await api.branch(project.id, 'guessed');
  const [direct, pooled] = await targets('guessed');
  const others = await targets('other');
  const guess = { ...pooled, password: 'a guess' };
  expect(tried(await attempts(20, pooled, { address: OUTSIDE }))).toBe(0);

  const outcomes = [
    ...(await attempts(10, direct)),
    ...(await attempts(10, { ...direct, password: 'a guess' })),
    ...(await attempts(10, pooled)),
    ...(await attempts(19, guess)),
  ];
  expect(tried(outcomes)).toBe(49);
  // `npm run bench -- connection-limits` measures how many more pass until both servers refuse them.
  await eventually(async () => expect(await attempt(guess)).toBe('refused'));
  for (const target of [direct, pooled])
    await eventually(async () => expect(await attempt(target)).toBe('refused'));
  for (const target of others) expect(await attempt(target)).toBe('in');
});
