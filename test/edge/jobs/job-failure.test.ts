import { DrizzleQueryError } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { jobError } from '../../../edge/jobs/saga.ts';

test('the error of a job with a failed query contains none of its values', () => {
  const error = new DrizzleQueryError('insert ?', ['sealed password'], new Error('D1_ERROR: network lost'));
  expect(jobError(error)).toEqual({ code: 'INTERNAL', message: 'D1_ERROR: network lost' });
});
