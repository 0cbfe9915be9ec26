import { z } from 'zod';
import {
  emptyResponse,
  jsonBody,
  operation,
  operations,
  optionalJsonBody,
  response,
} from '../pipeline/operation.ts';
import { refreshTokenOf, renewPageSession } from '../sign-in/session-cookie.ts';
import { refresh, signOut, TOKEN_FIELDS, tokenFields } from '../sign-in/sessions.ts';
import { clearPageSession, pageCookieOf, requireOwnPage, storePageSession } from './page-session.ts';
import { signInContextOf } from './sign-in-context.ts';

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
        'The ID in the `actor_id` of audit events: that of the user, the API key or the trust; null without a tenant.',
    }),
    actor_type: z
      .enum(['key', 'workload'])
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
    const tokens = await refresh(signInContextOf(c), submitted);
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
    const tokens = cookie === undefined ? null : await renewPageSession(signInContextOf(c), cookie);
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
    await signOut(context, bearer, submitted ?? (await refreshTokenOf(context.settings, pageCookieOf(c))));
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

export const sessionRoutes = router;
