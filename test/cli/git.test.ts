import { expect, test } from 'vitest';
import { slugOf } from '../../cli/git.ts';
import { BranchName } from '../../shared/branch/branch-name.ts';

const LONG = 'a'.repeat(200);

test.each([
  ['feature-x', 'feature-x'],
  ['feature/x', /^feature-x-[0-9a-f]{8}$/],
  ['Feature-X', /^feature-x-[0-9a-f]{8}$/],
  ['übung', /^-bung-[0-9a-f]{8}$/],
  ['ab', /^ab-[0-9a-f]{8}$/],
  [LONG, /^a{39}-[0-9a-f]{8}$/],
  ['00000000-0000-4000-8000-000000000000', /^00000000-0000-4000-8000-000000000000-[0-9a-f]{8}$/],
  ['日本', /^--+[0-9a-f]{8}$/],
])('the git branch %s has the branch %s', (name, expected) => {
  const slug = slugOf(name) ?? '';
  expect(slug).toMatch(expected instanceof RegExp ? expected : new RegExp(`^${expected}$`));
  expect(BranchName.safeParse(slug).success).toBe(true);
});

test.each(['main', 'Main', 'MAIN'])('%s has none', (name) => {
  expect(slugOf(name)).toBeNull();
});

test('a project with a long name has shorter branches', () => {
  expect(slugOf('feature-of-thirty-characters-x', 30)).toMatch(/^feature-of-thirty-cha-[0-9a-f]{8}$/);
  expect(slugOf('short', 30)).toBe('short');
  expect(slugOf(LONG, 30)).toHaveLength(30);
});

test('names that differ have branches that differ', () => {
  const names = ['feature/x', 'feature-x', 'Feature/x', 'feature.x', 'FEATURE/X', `${LONG}1`, `${LONG}2`];
  expect(new Set(names.map(slugOf)).size).toBe(names.length);
});
