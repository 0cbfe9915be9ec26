import { describe, expect, test } from 'vitest';
import { BranchName } from '../../../shared/branch/branch-name.ts';
import {
  branchDatabaseName,
  environmentName,
  MANAGED_DATABASE,
  maxSlugLength,
} from '../../../shared/branch/database-name.ts';

describe('branch name', () => {
  test.each(['dev', 'pr-1', 'a_b', '---', 'x'.repeat(48), 'all', 'replication'])('%s is accepted', (name) => {
    expect(BranchName.parse(name)).toBe(name);
  });

  test.each([
    'ab',
    'x'.repeat(49),
    'main',
    'Dev',
    'a b',
    'a+b',
    "a'b",
    'a"b',
    'a;b',
    'dev\n',
    'dév',
    '../x',
    '0f0e0d0c-0b0a-4908-8706-050403020100',
  ])('%j is rejected', (name) => {
    expect(BranchName.safeParse(name).success).toBe(false);
  });
});

describe('database name', () => {
  test('follows the specification', () => {
    expect(branchDatabaseName('shop', 'prod', 'pr-1')).toBe('db_shop_prod_br_pr-1');
    expect(environmentName('db_shop_prod_br_pr-1')).toBe('SHOP_PROD_BR_PR_1');
  });

  test('the longest slug gives a name of 63 characters', () => {
    const longest = maxSlugLength('a'.repeat(30), 'prod');
    expect(branchDatabaseName('a'.repeat(30), 'prod', 'x'.repeat(longest))).toHaveLength(63);
    expect(maxSlugLength('a', 'p')).toBe(48);
    expect(maxSlugLength('a'.repeat(48), 'staging')).toBe(0);
  });

  test.each([
    'all',
    'replication',
    'postgres',
    'template1',
    'db_',
    'db_a"b',
    'db_a\nb',
    'db_A',
    `db_${'a'.repeat(61)}`,
  ])('%j is not a managed database', (name) => {
    expect(MANAGED_DATABASE.test(name)).toBe(false);
  });
});
