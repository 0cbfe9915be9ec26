import { z } from 'zod';
import {
  emptyResponse,
  jsonBody,
  operation,
  operations,
  optionalJsonBody,
  response,
} from '../api/operation.ts';
import { refresh } from '../sign-in/sessions/refresh.ts';
import { signOut } from '../sign-in/sessions/sign-out.ts';
import { TOKEN_FIELDS, tokenFields } from '../sign-in/sessions/token-response.ts';

const tags = ['Sign-in'];

const RefreshToken = z.string().min(1).max(8192);
const Renewal = z
  .strictObject({ refresh_token: RefreshToken })
  .meta({ id: 'Renewal', example: { refresh_token: 'eyJhbGciOiJIUzI1NiIs…' } });
const SignOut = z.strictObject({ refresh_token: RefreshToken.optional() }).meta({
  id: 'SignOut',
  description: 'The refresh token of a sign-in through the identity provider, which is revoked there.',
  example: {},
});

const RenewedTokens = z
  .strictObject({
    ...TOKEN_FIELDS,
    refresh_token: z
      .string()
      .meta({ description: 'For the next time; the one that was sent may be used up.' }),
  })
  .meta({ id: 'RenewedTokens' });

const Me = z
  .strictObject({
    id: z
      .uuid()
      .nullable()
      .meta({ description: 'As in `created_by` and `actor_id`; null without a tenant.' }),
    email: z.string().meta({ example: 'ada@example.com' }),
    role: z.string().meta({
      description: '`owner`, `admin`, `operator` or `viewer`; any other one may do nothing here.',
      example: 'owner',
    }),
    scopes: z.array(z.string()).meta({ example: ['branchgate:read', 'branchgate:write'] }),
    tenant_id: z.string().nullable().meta({ example: 'acme' }),
    issuer: z.string().meta({
      description: 'Who signed the token: the identity provider, or this gateway for an account of its own.',
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
    summary: 'New tokens for a refresh token',
    description:
      "Each of the gateway's own refresh tokens is good once: send the new one next time. A used one gets nothing, and after 10 seconds it ends the session, because it may have been stolen.",
    tags,
    request: { body: jsonBody(Renewal) },
    responses: { 200: response('The new tokens.', RenewedTokens) },
    failures: ['REFRESH_TOKEN_WRONG', 'IDP_UNAVAILABLE', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const { refresh_token: given } = c.req.valid('json');
    const tokens = await refresh(c, given);
    c.header('Cache-Control', 'no-store');
    // Who gives no other refresh token takes this one again (RFC 6749 section 6).
    return c.json({ ...tokenFields(tokens), refresh_token: tokens.refreshToken ?? given }, 200);
  },
);

router.openapi(
  operation({
    access: 'signed_in',
    operationId: 'signOut',
    method: 'post',
    path: '/api/v1/auth/logout',
    summary: 'Sign out',
    description:
      'The refresh tokens of the session end at once. Access tokens can not be taken back: they last until they expire.',
    tags,
    request: { body: optionalJsonBody(SignOut) },
    responses: { 204: emptyResponse('Signed out, also if that was so before.') },
    failures: ['IDP_UNAVAILABLE'],
  }),
  async (c) => {
    await signOut(c, c.req.valid('json').refresh_token);
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'signed_in',
    operationId: 'getMe',
    method: 'get',
    path: '/api/v1/me',
    summary: 'Who the bearer of this token is',
    description: 'Any role may ask, also without a tenant.',
    tags,
    responses: { 200: response('What the token says, and the id that records know the user by.', Me) },
  }),
  (c) => {
    const { email, role, scopes, tenantId, issuer } = c.var.identity;
    const id = c.var.principal?.userId ?? null;
    return c.json({ id, email, role, scopes: [...scopes], tenant_id: tenantId, issuer }, 200);
  },
);

export const sessionRoutes = router;
