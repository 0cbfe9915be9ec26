import { base64url } from 'jose';
import { z } from 'zod';
import { MCP_PATH, mcpResource } from '../authentication/own-tokens.ts';
import { ApiError, unwrap } from '../errors.ts';
import { AuthorizationRequest, checkRequest, scopesOf } from '../oauth/authorization-request.ts';
import {
  ClientMetadata,
  isDocumentUrl,
  registerClient,
  registeredClient,
  registrationOf,
} from '../oauth/clients.ts';
import { exchangeCode, refreshGrant, revokeByToken } from '../oauth/grant-tokens.ts';
import { isRedirectOf } from '../oauth/redirect-uri.ts';
import { type AppContext, connectingIp } from '../pipeline/context.ts';
import { emptyResponse, formBody, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce } from '../rate-limits/limiter-client.ts';
import { readSettings, type Settings } from '../settings.ts';
import { signInContextOf } from './sign-in-context.ts';

/**
 * The authorization server of `/mcp`, as the Model Context Protocol of 2025-11-25 wants it: OAuth 2.1 with public clients, PKCE
 * and resource indicators. People decide on the page of the console that `authorize` leads to.
 */

const tags = ['Sign-in of agents'];
const OAUTH = '/api/v1/auth/oauth';
const WELL_KNOWN = '/.well-known/oauth-protected-resource';

/** The page of the console that asks the person. */
const CONSENT_PAGE = '/authorize';

/** Browsers and servers accept longer addresses, but the page has to fit into the cookie of a sign-in. */
const PAGE_LENGTH_MAX = 2000;

/** The only parameter of `/mcp`, and so of its resource. */
const ResourceQuery = z.object({ project_id: z.uuid().toLowerCase().optional() });

const inProject = (address: string, projectId: string | undefined) =>
  projectId === undefined ? address : `${address}?project_id=${projectId}`;

/** What a client that has no valid token learns at `/mcp` (RFC 9728 section 5.1). */
export function mcpChallenge(c: AppContext): string {
  const settings = readSettings(c.env);
  const query = ResourceQuery.safeParse(c.req.query());
  const metadata = inProject(settings.BASE_URL + WELL_KNOWN + MCP_PATH, query.data?.project_id);
  const error = c.req.header('authorization') === undefined ? '' : ' error="invalid_token",';
  return `Bearer${error} resource_metadata="${metadata}", scope="${scopesOf(settings).join(' ')}"`;
}

const Uris = z.array(z.string());

const ResourceMetadata = z
  .strictObject({
    resource: z.string().meta({ example: 'https://branchgate.example.com/mcp' }),
    resource_name: z.string(),
    authorization_servers: Uris,
    scopes_supported: Uris,
    bearer_methods_supported: Uris,
    resource_documentation: z.string(),
  })
  .meta({ id: 'ProtectedResourceMetadata' });

const resourceMetadata = (settings: Settings, projectId: string | undefined) => ({
  resource: inProject(mcpResource(settings), projectId),
  resource_name: settings.SERVICE_NAME,
  authorization_servers: [settings.BASE_URL],
  scopes_supported: scopesOf(settings),
  bearer_methods_supported: ['header'],
  resource_documentation: `${settings.BASE_URL}/docs`,
});

const router = operations();

for (const [operationId, path, about] of [
  [
    'getMcpMetadata',
    WELL_KNOWN + MCP_PATH,
    'The address is that of the `WWW-Authenticate` header of `/mcp`.',
  ],
  ['getResourceMetadata', WELL_KNOWN, 'The same as for `/mcp`, for clients that look at the root only.'],
] as const) {
  router.openapi(
    operation({
      access: 'public',
      operationId,
      method: 'get',
      path,
      summary: 'Get the protected resource metadata of `/mcp`',
      description: `RFC 9728. ${about}`,
      tags,
      request: { query: ResourceQuery },
      responses: { 200: response('Where to get tokens for `/mcp`.', ResourceMetadata) },
    }),
    (c) => c.json(resourceMetadata(readSettings(c.env), c.req.valid('query').project_id), 200),
  );
}

const ServerMetadata = z
  .strictObject({
    issuer: z.string().meta({ example: 'https://branchgate.example.com' }),
    authorization_endpoint: z.string(),
    token_endpoint: z.string(),
    registration_endpoint: z.string(),
    revocation_endpoint: z.string(),
    scopes_supported: Uris,
    response_types_supported: Uris,
    response_modes_supported: Uris,
    grant_types_supported: Uris,
    token_endpoint_auth_methods_supported: Uris,
    revocation_endpoint_auth_methods_supported: Uris,
    code_challenge_methods_supported: Uris,
    authorization_response_iss_parameter_supported: z.literal(true),
    client_id_metadata_document_supported: z.literal(true),
    protected_resources: Uris,
    service_documentation: z.string(),
  })
  .meta({ id: 'AuthorizationServerMetadata' });

router.openapi(
  operation({
    access: 'public',
    operationId: 'getAuthorizationServerMetadata',
    method: 'get',
    path: '/.well-known/oauth-authorization-server',
    summary: 'Get the authorization server metadata',
    description: 'RFC 8414. For clients of `/mcp` only.',
    tags,
    responses: { 200: response('The endpoints, and what they support.', ServerMetadata) },
  }),
  (c) => {
    const settings = readSettings(c.env);
    const { BASE_URL } = settings;
    const endpoint = (name: string) => `${BASE_URL}${OAUTH}/${name}`;
    return c.json(
      {
        issuer: BASE_URL,
        authorization_endpoint: endpoint('authorize'),
        token_endpoint: endpoint('token'),
        registration_endpoint: endpoint('register'),
        revocation_endpoint: endpoint('revoke'),
        scopes_supported: scopesOf(settings),
        response_types_supported: ['code'],
        response_modes_supported: ['query'],
        grant_types_supported: ['authorization_code', 'refresh_token'],
        token_endpoint_auth_methods_supported: ['none'],
        revocation_endpoint_auth_methods_supported: ['none'],
        code_challenge_methods_supported: ['S256'],
        authorization_response_iss_parameter_supported: true as const,
        client_id_metadata_document_supported: true as const,
        protected_resources: [mcpResource(settings)],
        service_documentation: `${BASE_URL}/docs`,
      },
      200,
    );
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'authorizeClient',
    method: 'get',
    path: `${OAUTH}/authorize`,
    summary: 'Ask a person to let a client use `/mcp`',
    description:
      'Redirects the browser to the consent page of the console. A request with anything wrong is 400 and never leads to the address of the client, because anybody can register one.',
    tags,
    request: { query: AuthorizationRequest },
    responses: { 302: emptyResponse('`Location` is the consent page.') },
    failures: [
      'invalid_request',
      'invalid_client',
      'invalid_target',
      'invalid_scope',
      'unsupported_response_type',
    ],
  }),
  async (c) => {
    const settings = readSettings(c.env);
    const sent = c.req.valid('query');
    const { clientId, redirectUri } = unwrap(checkRequest(settings, sent));
    // The document of another client is fetched for a person who has signed in.
    if (!isDocumentUrl(clientId)) {
      const client = unwrap(await registeredClient(databaseOf(c), clientId, new Date()));
      if (!isRedirectOf(client.redirectUris, redirectUri)) throw ApiError.of(foreignRedirect());
    }
    // As one text, because the router of the page would read a state of digits as a number.
    const page = `${CONSENT_PAGE}?request=${base64url.encode(JSON.stringify(sent))}`;
    if (page.length > PAGE_LENGTH_MAX) {
      const error_description = `The parameters are longer than ${PAGE_LENGTH_MAX} characters.`;
      throw new ApiError('invalid_request', { error_description });
    }
    return c.redirect(settings.BASE_URL + page, 302);
  },
);

/** The failure of a request for an address that is none of the client's. */
export const foreignRedirect = () => ({
  code: 'invalid_request' as const,
  fields: { error_description: 'redirect_uri is none of the addresses of the client.' },
  reason: 'redirect_uri of another client',
});

const Registration = ClientMetadata.meta({
  example: { client_name: 'Agent', redirect_uris: ['http://127.0.0.1/callback'] },
});

const RegisteredClient = z
  .strictObject({
    client_id: z.string(),
    client_id_issued_at: z.int(),
    client_name: z.string(),
    redirect_uris: Uris,
    token_endpoint_auth_method: z.literal('none'),
    grant_types: Uris,
    response_types: Uris,
  })
  .meta({ id: 'RegisteredClient' });

router.openapi(
  operation({
    access: 'public',
    operationId: 'registerClient',
    method: 'post',
    path: `${OAUTH}/register`,
    summary: 'Register a client',
    description:
      'RFC 7591. Clients have no secret. Redirect addresses are https, or http on the loopback address with any port. A registration that nobody uses is gone after a day. 20 an hour for each address.',
    tags,
    request: { body: jsonBody(Registration) },
    responses: { 201: response('The client.', RegisteredClient) },
    failures: ['invalid_client_metadata', 'invalid_redirect_uri', 'OAUTH_CLIENT_LIMIT_REACHED'],
  }),
  async (c) => {
    unwrap(await enforce(c.env, bucketOf.clientRegistration(connectingIp(c))));
    const row = unwrap(await registerClient(databaseOf(c), c.req.valid('json'), new Date()));
    return c.json(registrationOf(row), 201);
  },
);

const Text = z.string().min(1).max(2048);

/** Other parameters are ignored, as RFC 6749 section 3.2 requires. */
const TokenRequest = z
  .object({
    grant_type: z.string().meta({ description: '`authorization_code` or `refresh_token`.' }),
    client_id: Text,
    code: Text.optional(),
    redirect_uri: Text.optional(),
    code_verifier: z
      .string()
      .regex(/^[\w.~-]{43,128}$/, 'expected 43 to 128 characters')
      .optional()
      .meta({ description: 'RFC 7636 section 4.1.' }),
    refresh_token: z.string().min(1).max(8192).optional(),
    resource: Text.optional().meta({ description: 'As in the authorization request.' }),
    scope: Text.optional(),
  })
  .meta({
    example: {
      grant_type: 'authorization_code',
      client_id: 'https://agent.example.com/client.json',
      code: 'SplxlOBeZQQYbYS6WxSbIA',
      redirect_uri: 'http://127.0.0.1:49152/callback',
      code_verifier: 'dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk',
      resource: 'https://branchgate.example.com/mcp',
    },
  });

const AgentTokens = z
  .strictObject({
    access_token: z.string().meta({ example: 'eyJhbGciOiJIUzI1NiIs…' }),
    token_type: z.literal('Bearer'),
    expires_in: z.int().meta({ description: 'Seconds.', example: 900 }),
    refresh_token: z
      .string()
      .meta({ description: 'Valid once: the next one comes with the next access token.' }),
    scope: z.string().meta({ example: 'branchgate:read branchgate:write' }),
  })
  .meta({ id: 'AgentTokens' });

const incomplete = (names: string) =>
  new ApiError('invalid_request', { error_description: `This grant_type needs ${names}.` });

router.openapi(
  operation({
    access: 'public',
    operationId: 'issueAgentTokens',
    method: 'post',
    path: `${OAUTH}/token`,
    summary: 'Exchange an authorization code or a refresh token of a client',
    description:
      'The access token is valid for 15 minutes at `/mcp` only. A code is valid for a minute and once; if it is sent again, or with a wrong verifier, the sign-in ends. A refresh token is valid once, and one that is used twice ends the sign-in. All end 30 days after the consent at the latest.',
    tags,
    request: { body: formBody(TokenRequest) },
    responses: { 200: response('The tokens.', AgentTokens) },
    failures: [
      'invalid_request',
      'invalid_grant',
      'invalid_target',
      'invalid_scope',
      'unsupported_grant_type',
      'IDP_UNAVAILABLE',
      'SSO_MISCONFIGURED',
    ],
  }),
  async (c) => {
    const context = signInContextOf(c);
    const tokens = unwrap(await tokensFor(context, c.req.valid('form')));
    const { accessToken, refreshToken, expiresInSeconds, scopes } = tokens;
    return c.json(
      {
        access_token: accessToken,
        token_type: 'Bearer' as const,
        expires_in: expiresInSeconds,
        refresh_token: refreshToken,
        scope: scopesOf(context.settings, scopes).join(' '),
      },
      200,
    );
  },
);

function tokensFor(context: ReturnType<typeof signInContextOf>, sent: z.output<typeof TokenRequest>) {
  const { grant_type, client_id, code, redirect_uri, code_verifier, refresh_token, resource, scope } = sent;
  if (grant_type === 'authorization_code') {
    if (code === undefined || redirect_uri === undefined || code_verifier === undefined)
      throw incomplete('code, redirect_uri and code_verifier');
    return exchangeCode(context, { client_id, code, redirect_uri, code_verifier, resource });
  }
  if (grant_type === 'refresh_token') {
    if (refresh_token === undefined) throw incomplete('refresh_token');
    return refreshGrant(context, { client_id, refresh_token, resource, scope });
  }
  throw new ApiError('unsupported_grant_type');
}

const Revocation = z
  .object({ token: z.string().min(1).max(8192), client_id: Text })
  .meta({ example: { token: 'eyJhbGciOiJIUzI1NiIs…', client_id: 'https://agent.example.com/client.json' } });

router.openapi(
  operation({
    access: 'public',
    operationId: 'revokeAgentToken',
    method: 'post',
    path: `${OAUTH}/revoke`,
    summary: 'End the sign-in of a client, by one of its tokens',
    description:
      'RFC 7009. Both of its tokens are refused within 10 seconds. A token that is not valid any more has the same response.',
    tags,
    request: { body: formBody(Revocation) },
    responses: { 200: emptyResponse('The sign-in has ended, now or earlier.') },
    failures: ['invalid_request', 'invalid_grant'],
  }),
  async (c) => {
    unwrap(await revokeByToken(signInContextOf(c), c.req.valid('form')));
    return c.body(null, 200);
  },
);

export const oauthRoutes = router;
