import { expect, test } from 'vitest';
import { checkResponse, type WireResponse } from './contract.ts';

const ID = '3f2b8c1e-6d4a-4b0f-9a57-1c2d3e4f5a6b';
const MOMENT = '2026-01-31T12:00:00.000Z';
const HEADERS = {
  'Content-Type': 'application/json',
  'X-Request-Id': 'request-1',
  'X-RateLimit-Limit': '200',
  'X-RateLimit-Remaining': '199',
  'X-RateLimit-Reset': String(Math.round(Date.now() / 1000) + 60),
};
const BRANCH = {
  id: ID,
  project_id: ID,
  parent_branch_id: null,
  branch_name: 'main',
  database_name: 'db_shop_prod',
  source_database: 'template0',
  status: 'active',
  lifespan: 'forever',
  expires_at: null,
  ttl_seconds: null,
  is_default: true,
  protected: true,
  created_by: ID,
  tenant_id: 'acme',
  created_at: MOMENT,
  updated_at: MOMENT,
};
const TOKENS = { access_token: 'a', refresh_token: 'r', token_type: 'bearer', expires_in: 900 };
const REFRESH = { method: 'POST', path: '/api/v1/auth/refresh' };
const LOOKUP = `/api/v1/projects/${ID}/branches/lookup?name=main`;
const FOUND = { matches: [BRANCH], is_duplicate: true };
const NOT_FOUND = { error: 'NOT_FOUND', message: 'There is no such thing.', request_id: 'request-1' };

function answerOf(
  body: unknown,
  more: Partial<WireResponse> = {},
  headers: Record<string, string | null> = {},
) {
  const given = Object.entries({ ...HEADERS, ...headers });
  const sent = given.filter((entry): entry is [string, string] => entry[1] !== null);
  const bodyText = body === undefined ? '' : JSON.stringify(body);
  return { method: 'GET', path: LOOKUP, status: 200, headers: new Headers(sent), bodyText, ...more };
}

test.each([
  ['a success', answerOf(FOUND)],
  ['a failure', answerOf(NOT_FOUND, { status: 404 })],
  ['a path that is none', answerOf(NOT_FOUND, { status: 404, path: '/api/v1/nowhere' })],
  ['a method that is none', answerOf(NOT_FOUND, { status: 404, method: 'POST' })],
  [
    'no body',
    answerOf(
      undefined,
      { status: 204, method: 'DELETE', path: `/api/v1/projects/${ID}/network-rules/${ID}` },
      { 'Content-Type': null },
    ),
  ],
  ['a success of HEAD', answerOf(undefined, { method: 'HEAD' })],
  ['a failure of HEAD', answerOf(undefined, { method: 'HEAD', status: 404, path: '/api/v1/nowhere' })],
  ['a token for no cache', answerOf(TOKENS, REFRESH, { 'Cache-Control': 'no-store' })],
  ['a page', answerOf('', { path: '/docs' }, { 'Content-Type': 'text/html; charset=UTF-8' })],
])('%s is taken', (_, answer) => checkResponse(answer));

test.each([
  ['an unknown field', answerOf({ ...FOUND, colour: 'red' }), /lookUpBranch .* 200 .*additional/s],
  ['an unknown field within', answerOf({ ...FOUND, matches: [{ ...BRANCH, colour: 'red' }] }), /additional/],
  ['a missing field', answerOf({ matches: [] }), /is_duplicate/],
  ['a value of another form', answerOf({ ...FOUND, matches: [{ ...BRANCH, id: '7' }] }), /uuid/],
  [
    'a status that is not described',
    answerOf(FOUND, { status: 201 }),
    /lookUpBranch .* 201 .*not described/s,
  ],
  ['an error of another status', answerOf(NOT_FOUND, { status: 429 }), /429/],
  ['an error without a code of ours', answerOf({ error: 'Oops' }, { status: 500 }), /500/],
  ['a success where there is nothing', answerOf(FOUND, { path: '/api/v1/nowhere' }), /no operation/],
  [
    'an error of another status where there is nothing',
    answerOf(NOT_FOUND, { status: 500, path: '/api/v1/nowhere' }),
    /no operation/,
  ],
  ['HEAD with a body', answerOf(FOUND, { method: 'HEAD' }), /there is a body/],
  ['no X-Request-Id', answerOf(FOUND, {}, { 'X-Request-Id': null }), /X-Request-Id is missing/],
  [
    'no X-RateLimit-Reset',
    answerOf(FOUND, {}, { 'X-RateLimit-Reset': null }),
    /X-RateLimit-Reset is missing/,
  ],
  ['a limit that is no number', answerOf(FOUND, {}, { 'X-RateLimit-Limit': 'many' }), /X-RateLimit-Limit/],
  ['more left than there is', answerOf(FOUND, {}, { 'X-RateLimit-Remaining': '201' }), /more than/],
  ['milliseconds', answerOf(FOUND, {}, { 'X-RateLimit-Reset': String(Date.now()) }), /not soon/],
  ['a header of another answer', answerOf(FOUND, {}, { 'Retry-After': '5' }), /Retry-After is not described/],
  [
    '401 without WWW-Authenticate',
    answerOf({ error: 'UNAUTHENTICATED', message: '', request_id: 'request-1' }, { status: 401 }),
    /WWW-Authenticate is missing/,
  ],
  [
    "another request's id",
    answerOf({ ...NOT_FOUND, request_id: 'request-2' }, { status: 404 }),
    /request_id/,
  ],
  ['a token that a cache may keep', answerOf(TOKENS, REFRESH), /a cache may keep access_token/],
  ['another media type', answerOf(FOUND, {}, { 'Content-Type': 'text/plain' }), /text\/plain/],
  [
    'a body where none is described',
    answerOf(FOUND, { status: 204, method: 'DELETE', path: `/api/v1/projects/${ID}/network-rules/${ID}` }),
    /there is a body/,
  ],
])('%s is refused', (_, answer, message) => expect(() => checkResponse(answer)).toThrow(message));
