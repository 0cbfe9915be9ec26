import { expect } from 'vitest';
import type { ApiResponse } from '../api.ts';

/** Headers that differ between responses to equal requests. */
const VARYING_HEADERS = [
  'x-request-id',
  'date',
  'x-ratelimit-remaining',
  'x-ratelimit-reset',
  // The position of D1, which every write moves.
  'x-branchgate-bookmark',
];

/** The parts of a response by which a client could distinguish two cases. */
function comparable({ status, headers, body }: ApiResponse) {
  const { request_id: _, ...rest } = body;
  return { status, body: rest, headers: [...headers].filter(([name]) => !VARYING_HEADERS.includes(name)) };
}

/**
 * Expects responses that a client cannot distinguish, apart from the request ID and the rate-limit headers.
 */
export async function expectSameAnswer(
  one: Promise<ApiResponse>,
  other: Promise<ApiResponse>,
): Promise<ApiResponse> {
  const [first, second] = await Promise.all([one, other]);
  expect(first.headers.get('x-request-id')).not.toBe(second.headers.get('x-request-id'));
  expect(comparable(first)).toEqual(comparable(second));
  return first;
}
