import { expect } from 'vitest';
import type { Answer } from '../api.ts';

/** Differ from answer to answer, whatever is asked for. */
const OF_ONE_ANSWER = ['x-request-id', 'date', 'x-ratelimit-remaining', 'x-ratelimit-reset'];

/** What of an answer could tell one thing from another. */
function telling({ status, headers, body }: Answer) {
  const { request_id: _, ...rest } = body;
  return { status, body: rest, headers: [...headers].filter(([name]) => !OF_ONE_ANSWER.includes(name)) };
}

/** Whether nobody could tell the answers apart, but for what names the request and counts it. */
export async function expectSameAnswer(one: Promise<Answer>, other: Promise<Answer>): Promise<Answer> {
  const [first, second] = await Promise.all([one, other]);
  expect(first.headers.get('x-request-id')).not.toBe(second.headers.get('x-request-id'));
  expect(telling(first)).toEqual(telling(second));
  return first;
}
