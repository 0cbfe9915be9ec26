import { expect, test } from 'vitest';
import { freeName } from '../../client/leased-branch.ts';
import { matchesPattern } from '../../edge/tenancy/branch-pattern.ts';
import { BranchName } from '../../shared/branch/branch-name.ts';

test.each(['*', 'pr-*', 'pr-*-ci', `${'a'.repeat(40)}*`, `${'a'.repeat(20)}*${'b'.repeat(27)}`])(
  'the name of a leased branch matches %s',
  (pattern) => {
    const names = new Set(Array.from({ length: 3 }, () => freeName('rehearse', pattern)));
    for (const name of names) {
      expect(matchesPattern(pattern, name)).toBe(true);
      expect(BranchName.safeParse(name).success).toBe(true);
    }
  },
);

test('a pattern of one name gives this name', () => {
  expect(freeName('exec', 'ci')).toBe('ci');
});

test('without a pattern it begins with its purpose', () => {
  expect(freeName('exec', null)).toMatch(/^exec-[0-9a-f]{10}$/);
});
