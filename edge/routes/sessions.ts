import { and } from 'drizzle-orm';
import { deleteCookie, getCookie, setCookie } from 'hono/cookie';
import type { CookieOptions } from 'hono/utils/cookie';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import { sessions } from '../database/session-schema.ts';
import { ApiError, unwrap } from '../errors.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import type { AppContext } from '../pipeline/context.ts';
import {
  emptyResponse,
  jsonBody,
  operation,
  operations,
  optionalJsonBody,
  response,
} from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import type { LoginResponse, ResponseForm } from '../sign-in/first-factor.ts';
import {
  endAllSessions,
  endOwnSession,
  isOpenSessionOf,
  Session,
  toSessionResponse,
} from '../sign-in/own-sessions.ts';
import { PAGE_COOKIE, pageCookie, refreshTokenOf, renewPageSession } from '../sign-in/session-cookie.ts';
import { refresh, signOut, TOKEN_FIELDS, tokenFields } from '../sign-in/sessions.ts';
import type { Tokens } from '../sign-in/sign-in-context.ts';
import { SessionParams } from './in-project.ts';
import { signInContextOf } from './sign-in-context.ts';

const ATTRIBUTES = { path: '/', httpOnly: true, secure: true, sameSite: 'Strict' } satisfies CookieOptions;

/**
 * Refuses requests that a page of another origin has made (CSRF): browsers name the page in headers that
 * scripts cannot set. It also keeps such a page from signing a visitor in to an account of its own.
 * @throws ApiError CROSS_ORIGIN_REQUEST
 */
function requireOwnPage(c: AppContext): void {
  const site = c.req.header('sec-fetch-site') ?? 'same-origin';
  const isOwn = c.req.header('origin') === readSettings(c.env).BASE_URL && site === 'same-origin';
  if (!isOwn) throw new ApiError('CROSS_ORIGIN_REQUEST');
}

const pageCookieOf = (c: AppContext): string | undefined => getCookie(c, PAGE_COOKIE);

/** Stores the refresh token in the browser, for as long as an unused one of the gateway is valid. */
export async function storePageSession(c: AppContext, tokens: Pick<Tokens, 'refreshToken'>): Promise<void> {
  const settings = readSettings(c.env);
  const maxAge = settings.JWT_REFRESH_TTL_SECONDS;
  setCookie(c, PAGE_COOKIE, await pageCookie(settings, tokens), { ...ATTRIBUTES, maxAge });
}

function clearPageSession(c: AppContext): void {
  if (pageCookieOf(c) !== undefined) deleteCookie(c, PAGE_COOKIE, ATTRIBUTES);
}

/**
 * Runs one step of a sign-in and delivers its tokens in the form that the client requested.
 * @throws ApiError CROSS_ORIGIN_REQUEST before the step runs, and the failures of the step
 */
export async function deliverLogin<L extends LoginResponse>(
  c: AppContext,
  form: ResponseForm,
  step: () => Promise<Result<L, Failure>>,
): Promise<L> {
  if (form === 'json') return unwrap(await step());
  requireOwnPage(c);
  const login = unwrap(await step());
  if (login.access_token === null) return login;
  await storePageSession(c, { refreshToken: login.refresh_token });
  return { ...login, refresh_token: null };
}

const tags = ['Sign-in'];

const RefreshToken = z.string().min(1).max(8192);
const Renewal = z
  .strictObject({ refresh_token: RefreshToken })
  .meta({ id: 'Renewal', example: { refresh_token: 'eyJhbGciOiJIUzI1NiIs…' } });
const SignOut = z.strictObject({ refresh_token: RefreshToken.optional() }).meta({
  id: 'SignOut',
  description: 'The refresh token of a sign-in at the identity provider, which is revoked there.',
  example: {},
});

const RenewedTokens = z
  .strictObject({
    ...TOKEN_FIELDS,
    refresh_token: z
      .string()
      .meta({ description: 'Use this token next; the submitted one may no longer be valid.' }),
  })
  .meta({ id: 'RenewedTokens' });

const { refresh_token: _, ...PAGE_TOKEN_FIELDS } = TOKEN_FIELDS;
const PageSession = z.strictObject(PAGE_TOKEN_FIELDS).meta({ id: 'PageSession' });

const Me = z
  .strictObject({
    id: z
      .uuid()
      .nullable()
      .meta({ description: 'The ID of the user in `created_by`; null without a tenant.' }),
    actor_id: z.uuid().nullable().meta({
      description:
        'The ID in the `actor_id` of audit events: that of the user, the API key, the trust or the grant; null without a tenant.',
    }),
    actor_type: z
      .enum(['key', 'workload', 'grant'])
      .optional()
      .meta({ description: 'Absent for a user.', example: 'key' }),
    branch_pattern: z.string().nullable().optional().meta({
      description:
        'For an API key or a workload: the names of the branches that it can use. Null: every branch.',
      example: 'pr-*',
    }),
    email: z
      .string()
      .nullable()
      .meta({ description: 'Null for an API key or a workload.', example: 'ada@example.com' }),
    role: z.string().meta({
      description: '`owner`, `admin`, `operator` or `viewer`; any other role has no permissions.',
      example: 'owner',
    }),
    scopes: z.array(z.string()).meta({ example: ['branchgate:read', 'branchgate:write'] }),
    tenant_id: z.string().nullable().meta({ example: 'acme' }),
    issuer: z.string().meta({
      description: 'The issuer of the token: the identity provider, or this gateway for a local account.',
      example: 'https://idp.example.com',
    }),
  })
  .meta({ id: 'Me' });

const router = operations();

router.openapi(
  operation({
    access: 'public',
    operationId: 'renewTokens',
    method: 'post',
    path: '/api/v1/auth/refresh',
    summary: 'Renew tokens with a refresh token',
    description:
      'A refresh token of the gateway is valid once; use the returned one next. A token that was used more than 10 seconds ago ends its session, because it may have been stolen.',
    tags,
    request: { body: jsonBody(Renewal) },
    responses: { 200: response('The new tokens.', RenewedTokens) },
    failures: ['REFRESH_TOKEN_WRONG', 'IDP_UNAVAILABLE', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const { refresh_token: submitted } = c.req.valid('json');
    const tokens = unwrap(await refresh(signInContextOf(c), submitted));
    // A provider that returns no new refresh token continues to accept this one (RFC 6749 section 6).
    return c.json({ ...tokenFields(tokens), refresh_token: tokens.refreshToken ?? submitted }, 200);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'renewPageSession',
    method: 'post',
    path: '/api/v1/auth/session',
    summary: 'Get an access token for the session of a page',
    description:
      'Only for pages of this origin. Takes the cookie of a sign-in with `response=page`, and replaces it. Tabs that send the same cookie at the same time all stay signed in; if the session is one of the identity provider, they may get 429 and should try again.',
    tags,
    responses: {
      200: response('An access token.', PageSession),
      204: emptyResponse('Nobody is signed in. The cookie is cleared, if there was one.'),
    },
    failures: ['CROSS_ORIGIN_REQUEST', 'IDP_UNAVAILABLE', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    requireOwnPage(c);
    const cookie = pageCookieOf(c);
    const tokens = cookie === undefined ? null : unwrap(await renewPageSession(signInContextOf(c), cookie));
    if (!tokens) {
      clearPageSession(c);
      return c.body(null, 204);
    }
    await storePageSession(c, tokens);
    const { refresh_token: _, ...token } = tokenFields(tokens);
    return c.json(token, 200);
  },
);

router.openapi(
  operation({
    access: 'signed_in',
    machines: 'none',
    operationId: 'signOut',
    method: 'post',
    path: '/api/v1/auth/logout',
    summary: 'Sign out',
    description:
      'Revokes the refresh tokens of the session. Access tokens of the gateway are refused within 30 seconds; those of the identity provider remain valid until they expire. Clears the cookie of a page.',
    tags,
    request: { body: optionalJsonBody(SignOut) },
    responses: { 204: emptyResponse('The session has ended, now or earlier.') },
    failures: ['IDP_UNAVAILABLE'],
  }),
  async (c) => {
    const context = signInContextOf(c);
    const bearer = { identity: c.var.identity, principal: c.var.principal ?? null };
    const submitted = c.req.valid('json').refresh_token;
    const refreshToken = submitted ?? (await refreshTokenOf(context.settings, pageCookieOf(c)));
    unwrap(await signOut(context, bearer, refreshToken));
    clearPageSession(c);
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'signed_in',
    machines: 'of_branches',
    operationId: 'getMe',
    method: 'get',
    path: '/api/v1/me',
    summary: 'Get the bearer of this token',
    description:
      'Allowed for every role, with or without a tenant. For an API key or a workload: the user in whose name it acts, its role and its scopes.',
    tags,
    responses: { 200: response('The identity in the token, and the ID of the user in other responses.', Me) },
  }),
  (c) => {
    const { email, role, scopes, tenantId, issuer } = c.var.principal ?? c.var.identity;
    const { userId: id = null, machine } = c.var.principal ?? {};
    const bearer = machine
      ? { actor_type: machine.type, branch_pattern: machine.branchPattern, email: null }
      : { email };
    const actor_id = machine?.id ?? id;
    return c.json({ id, actor_id, ...bearer, role, scopes: [...scopes], tenant_id: tenantId, issuer }, 200);
  },
);

const ACCESS_TOKENS =
  'Refresh tokens stop working immediately, and access tokens within 30 seconds. Sessions of the identity provider end there.';

router.openapi(
  operation({
    access: 'signed_in',
    machines: 'none',
    operationId: 'listSessions',
    method: 'get',
    path: '/api/v1/auth/sessions',
    summary: 'List the open sessions of your account, newest first',
    description: 'Empty for a user of the identity provider, which has its own list.',
    tags,
    request: { query: PageQuery },
    responses: { 200: response('A page of sessions.', pageOf('sessions', Session)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const isOpen = isOpenSessionOf(c.var.identity, new Date());
    const { orderBy, beyond } = keyset(sessions, 'newest_first', query);
    const rows = await databaseOf(c)
      .select()
      .from(sessions)
      .where(and(isOpen, beyond))
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    const { sessionId } = c.var.identity;
    return c.json({ sessions: page.map((row) => toSessionResponse(row, sessionId)), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'signed_in',
    machines: 'none',
    operationId: 'endSession',
    method: 'delete',
    path: '/api/v1/auth/sessions/{session_id}',
    summary: 'Sign out one of your sessions',
    description: ACCESS_TOKENS,
    tags,
    request: { params: SessionParams },
    responses: { 204: emptyResponse('The session has ended.') },
    failures: ['MANAGED_BY_PROVIDER'],
  }),
  async (c) => {
    const { session_id: id } = c.req.valid('param');
    unwrap(await endOwnSession(signInContextOf(c), c.var.principal ?? null, id));
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'signed_in',
    machines: 'none',
    operationId: 'endAllSessions',
    method: 'delete',
    path: '/api/v1/auth/sessions',
    summary: 'Sign out all your sessions, this one included',
    description: ACCESS_TOKENS,
    tags,
    responses: { 204: emptyResponse('All sessions have ended.') },
    failures: ['MANAGED_BY_PROVIDER'],
  }),
  async (c) => {
    unwrap(await endAllSessions(signInContextOf(c), c.var.principal ?? null));
    return c.body(null, 204);
  },
);

export const sessionRoutes = router;
