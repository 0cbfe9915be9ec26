import { z } from 'zod';
import { unwrap } from '../errors.ts';
import { ACCESS_TOKEN, exchangeToken, GRANT_TYPE, ID_TOKEN } from '../machines/token-exchange.ts';
import { clientOf } from '../pipeline/context.ts';
import { formBody, operation, operations, response } from '../pipeline/operation.ts';
import { readSettings } from '../settings.ts';

const RESOURCE = 'https://branchgate.example.com/api/v1/projects/3f2b8c1e-6d4a-4b0f-9a57-1c2d3e4f5a6b';

/** Other parameters are ignored, as RFC 6749 section 3.2 requires. */
const Exchange = z
  .object({
    grant_type: z.string().meta({ example: GRANT_TYPE }),
    subject_token_type: z.string().meta({ example: ID_TOKEN }),
    subject_token: z
      .string()
      .meta({ description: 'An ID token of OpenID Connect.', example: 'eyJhbGciOiJSUzI1NiIs…' }),
    resource: z.string().meta({
      description: 'The URL of the project whose trust is meant.',
      example: RESOURCE,
    }),
  })
  .meta({
    example: {
      grant_type: GRANT_TYPE,
      subject_token_type: ID_TOKEN,
      subject_token: 'eyJhbGciOiJSUzI1NiIs…',
      resource: RESOURCE,
    },
  });

const IssuedToken = z
  .strictObject({
    access_token: z.string().meta({ example: 'eyJhbGciOiJIUzI1NiIs…' }),
    issued_token_type: z.literal(ACCESS_TOKEN),
    token_type: z.literal('Bearer'),
    expires_in: z.int().meta({ description: 'Seconds.', example: 900 }),
    scope: z.string().meta({ example: 'branchgate:read branchgate:write' }),
  })
  .meta({ id: 'IssuedToken' });

const router = operations();

router.openapi(
  operation({
    access: 'public',
    operationId: 'exchangeToken',
    method: 'post',
    path: '/api/v1/auth/token',
    summary: 'Exchange the ID token of a workload for an access token',
    description:
      'OAuth 2.0 token exchange (RFC 8693). The access token is valid for 15 minutes and limited as the trust says. Every refusal has the same description, so that it reveals no trust.',
    tags: ['Machine access'],
    request: { body: formBody(Exchange) },
    responses: { 200: response('The access token.', IssuedToken) },
    failures: ['invalid_request', 'invalid_target', 'unsupported_grant_type', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const issued = await exchangeToken(c.req.valid('form'), {
      settings: readSettings(c.env),
      database: c.env.DB,
      client: clientOf(c),
      now: new Date(),
      waitUntil: (work) => c.executionCtx.waitUntil(work),
    });
    const { token, expiresInSeconds, scopes } = unwrap(issued);
    return c.json(
      {
        access_token: token,
        issued_token_type: ACCESS_TOKEN as typeof ACCESS_TOKEN,
        token_type: 'Bearer' as const,
        expires_in: expiresInSeconds,
        scope: scopes.join(' '),
      },
      200,
    );
  },
);

export const tokenExchangeRoutes = router;
