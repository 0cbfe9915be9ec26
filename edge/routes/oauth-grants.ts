import { and, eq } from 'drizzle-orm';
import { z } from 'zod';
import { oauthGrants } from '../database/oauth-schema.ts';
import { projects } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { missing } from '../missing.ts';
import { AuthorizationRequest, checkRequest, responseUri } from '../oauth/authorization-request.ts';
import { clientById } from '../oauth/clients.ts';
import {
  Consent,
  GRANT_DAYS,
  grantsOf,
  insertGrant,
  isUsable,
  OAuthGrant,
  revokeGrant,
  toGrantResponse,
} from '../oauth/grants.ts';
import { isLoopbackUri, isRedirectOf } from '../oauth/redirect-uri.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { seesFullData } from '../permissions.ts';
import { type AppContext, actorOf, connectingIp } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf, primaryOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import { requireOtherWays } from '../sign-in/sign-up.ts';
import { visible } from '../tenancy/project-access.ts';
import { OAuthGrantParams } from './in-project.ts';
import { requireRole } from './machine-access.ts';
import { foreignRedirect } from './oauth.ts';

const tags = ['Sign-in of agents'];

const EXAMPLE = {
  response_type: 'code',
  client_id: 'https://agent.example.com/client.json',
  redirect_uri: 'http://127.0.0.1:49152/callback',
  code_challenge: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM',
  code_challenge_method: 'S256',
  resource: 'https://branchgate.example.com/mcp',
};

const Preview = z.strictObject({ request: AuthorizationRequest }).meta({ example: { request: EXAMPLE } });

const PreviewedGrant = z
  .strictObject({
    client_id: z.string(),
    client_name: z.string().meta({ description: 'As the client calls itself.', example: 'Agent' }),
    redirect_host: z.string().meta({
      description: 'Where the code would be sent, which is what people can rely on.',
      example: '127.0.0.1:49152',
    }),
    is_loopback: z.boolean().meta({ description: 'Whether that is the computer of the browser.' }),
    scopes: z
      .array(z.enum(['read', 'write']))
      .meta({ description: 'What the client asks for at most.', example: ['read', 'write'] }),
    project_id: z.uuid().nullable().meta({ description: 'The only project that the client asks for.' }),
    may_give_full_data: z
      .boolean()
      .meta({ description: 'Whether the person can give the permission `data.full`.' }),
    days: z.int().meta({ description: 'Until the client has to ask again.', example: GRANT_DAYS }),
    refused_uri: z.string().meta({
      description: 'Where the browser goes if the person refuses.',
      example: 'http://127.0.0.1:49152/',
    }),
  })
  .meta({ id: 'PreviewedGrant' });

const NewGrant = z.strictObject({ request: AuthorizationRequest, consent: Consent }).meta({
  example: {
    request: EXAMPLE,
    consent: {
      role: 'operator',
      scopes: ['read', 'write'],
      permissions: [],
      project_id: '3f2b8c1e-6d4a-4b0f-9a57-1c2d3e4f5a6b',
      branch_pattern: 'agent-*',
    },
  },
});

const CreatedGrant = z
  .strictObject({
    grant: OAuthGrant,
    redirect_uri: z.string().meta({ description: 'Where the browser takes the code to the client.' }),
  })
  .meta({ id: 'CreatedOAuthGrant' });

const FAILURES_OF_REQUEST = [
  'invalid_request',
  'invalid_client',
  'invalid_target',
  'invalid_scope',
  'unsupported_response_type',
] as const;

/** The request as checked, with its client. The browser of a person can have changed anything of it. @throws ApiError */
async function requestOf(c: AppContext, sent: z.output<typeof AuthorizationRequest>) {
  const settings = readSettings(c.env);
  const request = unwrap(checkRequest(settings, sent));
  const of = {
    limiters: c.env,
    settings,
    db: primaryOf(c),
    userId: c.var.principal.userId,
    address: connectingIp(c),
    now: new Date(),
  };
  const client = unwrap(await clientById(of, request.clientId));
  if (!isRedirectOf(client.redirectUris, request.redirectUri)) throw ApiError.of(foreignRedirect());
  return { settings, request, client };
}

const router = operations();

router.openapi(
  operation({
    access: 'grants.change',
    machines: 'none',
    operationId: 'previewOAuthGrant',
    method: 'post',
    path: '/api/v1/oauth-grants/preview',
    summary: 'Get what a client of `/mcp` asks for',
    description:
      'For the consent page. Reads the metadata document of the client, which is kept for an hour.',
    tags,
    request: { body: jsonBody(Preview) },
    responses: { 200: response('What the client asks for.', PreviewedGrant) },
    failures: FAILURES_OF_REQUEST,
  }),
  async (c) => {
    const { settings, request, client } = await requestOf(c, c.req.valid('json').request);
    const body = {
      client_id: client.id,
      client_name: client.name,
      redirect_host: new URL(request.redirectUri).host,
      is_loopback: isLoopbackUri(request.redirectUri),
      scopes: [...request.scopes],
      project_id: request.projectId,
      may_give_full_data: seesFullData(c.var.principal),
      days: GRANT_DAYS,
      refused_uri: responseUri(settings, request, { error: 'access_denied' }),
    };
    return c.json(body, 200);
  },
);

router.openapi(
  operation({
    access: 'grants.change',
    machines: 'none',
    operationId: 'createOAuthGrant',
    method: 'post',
    path: '/api/v1/oauth-grants',
    summary: 'Let a client use `/mcp` in your name',
    description:
      'For the consent page. The client acts with at most your role, and ends with your session, your membership, or after 30 days. Each person can have 50.',
    tags,
    request: { body: jsonBody(NewGrant) },
    responses: { 201: response('The grant, and where its code goes.', CreatedGrant) },
    failures: [...FAILURES_OF_REQUEST, 'SSO_REQUIRED', 'OAUTH_GRANT_LIMIT_REACHED'],
  }),
  async (c) => {
    const { request: sent, consent } = c.req.valid('json');
    const { principal, reach } = c.var;
    requireRole(c, consent.role);
    if (consent.permissions.includes('data.full') && !seesFullData(principal))
      throw new ApiError('FORBIDDEN', { required: 'role owner, admin' }, 'unmasked data');
    const { settings, request, client } = await requestOf(c, sent);
    if (consent.scopes.some((scope) => !request.scopes.includes(scope))) {
      const message = 'Must be among the scopes that the client asks for.';
      throw new ApiError('VALIDATION_FAILED', { details: [{ path: 'consent.scopes', message }] });
    }
    if (request.projectId !== null && consent.project_id !== request.projectId) {
      const message = 'Must be the project that the client asks for.';
      throw new ApiError('VALIDATION_FAILED', { details: [{ path: 'consent.project_id', message }] });
    }
    const db = primaryOf(c);
    if (principal.providerId === undefined) unwrap(await requireOtherWays({ db }, principal.email));
    if (consent.project_id !== null) {
      const ofProject = and(eq(projects.id, consent.project_id), visible(db, principal, reach));
      found(await db.select({ id: projects.id }).from(projects).where(ofProject), missing('project'));
    }
    const grant = { request, client, consent };
    const { row, code } = unwrap(await insertGrant(db, grant, principal, actorOf(c), new Date()));
    const body = {
      grant: toGrantResponse(row, settings.SERVICE_NAME),
      redirect_uri: responseUri(settings, request, { code }),
    };
    return c.json(body, 201);
  },
);

router.openapi(
  operation({
    access: 'grants.read',
    machines: 'none',
    operationId: 'listOAuthGrants',
    method: 'get',
    path: '/api/v1/oauth-grants',
    summary: 'List the clients that people signed in, oldest first',
    description: 'Owners and admins see those of everybody in the tenant, others their own.',
    tags,
    request: { query: PageQuery },
    responses: { 200: response('A page of grants.', pageOf('oauth_grants', OAuthGrant)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(oauthGrants, 'oldest_first', query);
    const rows = await databaseOf(c)
      .select()
      .from(oauthGrants)
      .where(and(grantsOf(c.var.principal, c.var.reach), isUsable(new Date()), beyond))
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    const { SERVICE_NAME } = readSettings(c.env);
    return c.json({ oauth_grants: page.map((row) => toGrantResponse(row, SERVICE_NAME)), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'grants.change',
    machines: 'none',
    operationId: 'deleteOAuthGrant',
    method: 'delete',
    path: '/api/v1/oauth-grants/{grant_id}',
    summary: 'Sign a client out',
    description: 'Its tokens are refused within 10 seconds.',
    tags,
    request: { params: OAuthGrantParams },
    responses: { 204: emptyResponse('The client is signed out.') },
  }),
  async (c) => {
    const { grant_id: id } = c.req.valid('param');
    const seen = grantsOf(c.var.principal, c.var.reach);
    unwrap(await revokeGrant(primaryOf(c), id, seen, actorOf(c), new Date()));
    return c.body(null, 204);
  },
);

export const oauthGrantRoutes = router;
