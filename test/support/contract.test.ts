import { expect, test } from 'vitest';
import { checkResponse, type WireResponse } from './contract.ts';

const ID = '3f2b8c1e-6d4a-4b0f-9a57-1c2d3e4f5a6b';
const TIMESTAMP = '2026-01-31T12:00:00.000Z';
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
  lease_seconds: null,
  lease_ends_at: null,
  connection_attempts_per_minute: 300,
  closed_to: [],
  settings: {},
  labels: {},
  is_default: true,
  protected: true,
  created_by: ID,
  tenant_id: 'acme',
  created_at: TIMESTAMP,
  updated_at: TIMESTAMP,
  deletes_at: null,
  data: 'full',
  keep_tables: [],
  masking_version: null,
  checked_at: null,
  blocked: null,
  connections_blocked_until: null,
};
const TOKENS = { access_token: 'a', refresh_token: 'r', token_type: 'bearer', expires_in: 900 };
const REFRESH = { method: 'POST', path: '/api/v1/auth/refresh' };
const LOOKUP = `/api/v1/projects/${ID}/branches/lookup?name=main`;
const FOUND = { matches: [BRANCH], is_duplicate: true };
const NOT_FOUND = { error: 'NOT_FOUND', message: 'Not found.', request_id: 'request-1' };

function responseOf(
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
  ['a success', responseOf(FOUND)],
  ['a failure', responseOf(NOT_FOUND, { status: 404 })],
  ['an unknown path', responseOf(NOT_FOUND, { status: 404, path: '/api/v1/nowhere' })],
  ['an unknown method', responseOf(NOT_FOUND, { status: 404, method: 'POST' })],
  [
    'no body',
    responseOf(
      undefined,
      { status: 204, method: 'DELETE', path: `/api/v1/projects/${ID}/network-rules/${ID}` },
      { 'Content-Type': null },
    ),
  ],
  ['a success of HEAD', responseOf(undefined, { method: 'HEAD' })],
  ['a failure of HEAD', responseOf(undefined, { method: 'HEAD', status: 404, path: '/api/v1/nowhere' })],
  ['a token with no-store', responseOf(TOKENS, REFRESH, { 'Cache-Control': 'no-store' })],
  ['a page', responseOf('', { path: '/docs' }, { 'Content-Type': 'text/html; charset=UTF-8' })],
])('%s is accepted', (_, response) => checkResponse(response));

test.each([
  ['an unknown field', responseOf({ ...FOUND, colour: 'red' }), /lookUpBranch .* 200 .*additional/s],
  [
    'an unknown nested field',
    responseOf({ ...FOUND, matches: [{ ...BRANCH, colour: 'red' }] }),
    /additional/,
  ],
  ['a missing field', responseOf({ matches: [] }), /is_duplicate/],
  ['a malformed value', responseOf({ ...FOUND, matches: [{ ...BRANCH, id: '7' }] }), /uuid/],
  ['an undescribed status', responseOf(FOUND, { status: 201 }), /lookUpBranch .* 201 .*not described/s],
  ['an error with another status', responseOf(NOT_FOUND, { status: 429 }), /429/],
  ['an error with an unknown code', responseOf({ error: 'Oops' }, { status: 500 }), /500/],
  ['a success at an unknown path', responseOf(FOUND, { path: '/api/v1/nowhere' }), /no operation/],
  [
    'an error with another status at an unknown path',
    responseOf(NOT_FOUND, { status: 500, path: '/api/v1/nowhere' }),
    /no operation/,
  ],
  ['HEAD with a body', responseOf(FOUND, { method: 'HEAD' }), /there is a body/],
  ['no X-Request-Id', responseOf(FOUND, {}, { 'X-Request-Id': null }), /X-Request-Id is missing/],
  [
    'no X-RateLimit-Reset',
    responseOf(FOUND, {}, { 'X-RateLimit-Reset': null }),
    /X-RateLimit-Reset is missing/,
  ],
  [
    'a limit that is not a number',
    responseOf(FOUND, {}, { 'X-RateLimit-Limit': 'many' }),
    /X-RateLimit-Limit/,
  ],
  ['more remaining than the limit', responseOf(FOUND, {}, { 'X-RateLimit-Remaining': '201' }), /more than/],
  ['a reset in milliseconds', responseOf(FOUND, {}, { 'X-RateLimit-Reset': String(Date.now()) }), /not soon/],
  ['an undescribed header', responseOf(FOUND, {}, { 'Retry-After': '5' }), /Retry-After is not described/],
  [
    '401 without WWW-Authenticate',
    responseOf({ error: 'UNAUTHENTICATED', message: '', request_id: 'request-1' }, { status: 401 }),
    /WWW-Authenticate is missing/,
  ],
  [
    "another request's id",
    responseOf({ ...NOT_FOUND, request_id: 'request-2' }, { status: 404 }),
    /request_id/,
  ],
  ['a token that a cache may store', responseOf(TOKENS, REFRESH), /a cache may store access_token/],
  ['another media type', responseOf(FOUND, {}, { 'Content-Type': 'text/plain' }), /text\/plain/],
  [
    'a body where none is described',
    responseOf(FOUND, { status: 204, method: 'DELETE', path: `/api/v1/projects/${ID}/network-rules/${ID}` }),
    /there is a body/,
  ],
])('%s is refused', (_, response, message) => expect(() => checkResponse(response)).toThrow(message));
