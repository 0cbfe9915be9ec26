import { describe, expect, test } from 'vitest';
import {
  AppKey,
  deriveAppKey,
  Environment,
  hasRoomForBranches,
} from '../../../shared/project/project-name.ts';

describe('app key', () => {
  test.each(['shop', 'a', 'my_shop_2', 'a'.repeat(48), 'abr', 'br2'])('%s is accepted', (key) => {
    expect(AppKey.parse(key)).toBe(key);
  });

  test.each(['', 'br', 'my_br_shop', 'x_br', '_a', 'a_', 'a__b', 'A', 'a-b', 'a'.repeat(49), 'a\n', 'é'])(
    '%j is rejected',
    (key) => {
      expect(AppKey.safeParse(key).success).toBe(false);
    },
  );

  test.each([
    ['My Shop', 'my_shop_x1y2'],
    ['Größe & Maß', 'gro_e_ma_x1y2'],
    ['br br', 'project_x1y2'],
    ['日本', 'project_x1y2'],
    ['abcdefghijklmnopq bright', 'abcdefghijklmnopq_x1y2'],
    ['a very long name for a project', 'a_very_long_name_for_x1y2'],
  ])('derived from %j is %s', (name, key) => {
    expect(deriveAppKey(name, 'x1y2')).toBe(key);
    expect(AppKey.safeParse(key).success).toBe(true);
  });
});

test.each([
  ['a'.repeat(48), 'prod', true],
  ['a'.repeat(48), 'stage', false],
  ['a'.repeat(45), 'staging', true],
  ['a'.repeat(46), 'staging', false],
])('%s with %s has room for branch names: %s', (key, env, expected) => {
  expect(hasRoomForBranches(key, env)).toBe(expected);
});

test('an environment is short, lowercase and never "br"', () => {
  expect(Environment.safeParse('staging').success).toBe(true);
  for (const env of ['br', '', 'production', 'a_b', 'A'])
    expect(Environment.safeParse(env).success).toBe(false);
});
