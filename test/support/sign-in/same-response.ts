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

/**
 * The parts of a response by which a client could distinguish two cases.
 * @param repeated references of the requests, which a response may repeat
 */
function comparable({ status, headers, body }: ApiResponse, repeated: readonly string[]) {
  const { request_id: _, ...others } = body;
  const rest = repeated.reduce((text, reference) => text.replaceAll(reference, '…'), JSON.stringify(others));
  return { status, body: rest, headers: [...headers].filter(([name]) => !VARYING_HEADERS.includes(name)) };
}

/**
 * Expects responses that a client cannot distinguish, apart from the request ID and the rate-limit headers.
 */
export async function expectSameAnswer(
  one: Promise<ApiResponse>,
  other: Promise<ApiResponse>,
  repeated: readonly string[] = [],
): Promise<ApiResponse> {
  const [first, second] = await Promise.all([one, other]);
  expect(first.headers.get('x-request-id')).not.toBe(second.headers.get('x-request-id'));
  expect(comparable(first, repeated)).toEqual(comparable(second, repeated));
  return first;
}
