import { DrizzleQueryError } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { withoutValues } from '../../../edge/database/database.ts';

const SECRET = 'ada@example.com';

test.each([
  ['here', new DrizzleQueryError('select 1', [SECRET], new Error('no such table'))],
  ['in an object', new Error(`Failed query: select 1\nparams: ${SECRET}`)],
  [
    'in an object, with the name of its class',
    new Error(`DrizzleQueryError: Failed query: select 1\nparams: ${SECRET}`),
  ],
])('the values of a query that failed %s are in no log', (_, error) => {
  const { message, stack } = withoutValues(error);
  expect(`${message} ${stack}`).not.toContain(SECRET);
});

test('other errors stay as they are', () => {
  const error = new Error('Failed to fetch');
  expect(withoutValues(error)).toBe(error);
});
