import type { MiddlewareHandler } from 'hono';
import { cors } from 'hono/cors';
import { secureHeaders } from 'hono/secure-headers';
import { authenticate, bearerToken, checkPlatformSecret } from './authentication/authenticate.ts';
import { MCP_PATH, verifyOwnToken } from './authentication/own-tokens.ts';
import type { Identity, Principal } from './authentication/principal.ts';
import { openDatabase } from './database/database.ts';
import { describe } from './documentation/describe.ts';
import { ApiError, unwrap } from './errors.ts';
import { providerOfScimToken } from './identity-providers/provider.ts';
import { authenticateMachine, machineTypeOf } from './machines/authenticate-machine.ts';
import { missing } from './missing.ts';
import { boundBody } from './pipeline/bounded-body.ts';
import { type AppContext, type AppEnv, connectingIp } from './pipeline/context.ts';
import { limitRequests } from './pipeline/limit-headers.ts';
import {
  countMachineRequest,
  countRequest,
  enforceBeforeWrites,
  enforceRequestLimit,
  guardSecret,
} from './pipeline/limits.ts';
import { operations } from './pipeline/operation.ts';
import { onError, renderFailure } from './pipeline/render-failure.ts';
import { passBookmark } from './pipeline/replica-choice.ts';
import { assignRequestId, logRequest, traceRequest } from './pipeline/request-log.ts';
import { bucketOf } from './rate-limits/buckets.ts';
import { agentRoutes } from './routes/agent.ts';
import { auditRoutes } from './routes/audit-events.ts';
import { bisectionRoutes } from './routes/bisections.ts';
import { branchHistoryRoutes } from './routes/branch-history.ts';
import { branchRoutes } from './routes/branches.ts';
import { changeRoutes } from './routes/changes.ts';
import { checkpointRoutes } from './routes/checkpoints.ts';
import { companySignInRoutes } from './routes/company-sign-in.ts';
import { credentialRoutes } from './routes/credentials.ts';
import { differenceRoutes } from './routes/differences.ts';
import { eventRoutes } from './routes/events.ts';
import { followRoutes } from './routes/follow.ts';
import { healthRoutes } from './routes/health.ts';
import { identityProviderRoutes } from './routes/identity-providers.ts';
import { importRoutes } from './routes/imports.ts';
import { jobRoutes } from './routes/jobs.ts';
import { machineAccessRoutes } from './routes/machine-access.ts';
import { maskingRoutes } from './routes/masking.ts';
import { mcpRoutes } from './routes/mcp.ts';
import { memberRoutes } from './routes/members.ts';
import { metricsRoutes } from './routes/metrics.ts';
import { moveRoutes } from './routes/moves.ts';
import { networkRuleRoutes } from './routes/network-rules.ts';
import { mcpChallenge, oauthRoutes } from './routes/oauth.ts';
import { oauthGrantRoutes } from './routes/oauth-grants.ts';
import { platformRoutes } from './routes/platform.ts';
import { platformAuditRoutes } from './routes/platform-audit.ts';
import { platformStandbyRoutes } from './routes/platform-standby.ts';
import { projectRoutes } from './routes/projects.ts';
import { providerSignInRoutes } from './routes/provider-sign-in.ts';
import { queryRoutes } from './routes/queries.ts';
import { rehearsalRoutes } from './routes/rehearsals.ts';
import { scimRoutes } from './routes/scim.ts';
import { sessionRoutes } from './routes/sessions.ts';
import { signInRoutes } from './routes/sign-in.ts';
import { snapshotRoutes } from './routes/snapshots.ts';
import { sqlRoutes } from './routes/sql.ts';
import { tableRoutes } from './routes/tables.ts';
import { trialRoutes } from './routes/trials.ts';
import { webhookRoutes } from './routes/webhooks.ts';
import { readSettings } from './settings.ts';
import { materialize } from './tenancy/users.ts';

/** Paths that need no bearer token. Every other path does, whether it has a route or not. */
const PUBLIC_PATHS: readonly RegExp[] = [
  /^\/healthz$/,
  /^\/readyz$/,
  /^\/version$/,
  /^\/api\/v1\/address$/,
  /^\/docs$/,
  /^\/api\/v1\/openapi\.json$/,
  /^\/\.well-known\/oauth-/,
  /^\/api\/v1\/auth\/oauth\/(?:authorize|token|register|revoke)$/,
  /^\/api\/v1\/auth\/(?:methods|sso\/recover|sso\/[^/]+\/(?:start|callback))$/,
  /^\/api\/v1\/auth\/(?:idp\/(?:login|callback)|token|login|signup|magic-link\/(?:start|verify)|password\/reset(?:\/start)?|invitations\/accept|cli\/(?:start|exchange)|refresh|session)$/,
];
/** Agents authenticate in the handshake of their link. */
const AGENT_PATHS = /^\/agent\/v1\//;
const PLATFORM_PATHS = /^\/platform\/v1\//;
const SCIM_PATHS = /^\/scim\/v2(?:\/|$)/;
/** The only paths that accept a pre-auth token. */
const SECOND_FACTOR_PATHS = /^\/api\/v1\/auth\/2fa\//;
/** Paths that accept an access token without a tenant. */
const OWN_PATHS = /^\/api\/v1\/(?:me|auth\/(?:logout|password|sessions(?:\/[^/]+)?))$/;

/** Responses are data, never an active page; the page at `/docs` sets its own policy. */
const NO_PAGE = "default-src 'none'; frame-ancestors 'none'";

/** The API's own description, the only responses that are the same for everyone. */
const CACHEABLE_PATHS = /^\/(?:docs|api\/v1\/openapi\.json)$/;

const secure: MiddlewareHandler<AppEnv> = async (c, next) => {
  await next();
  const { headers } = c.res;
  if (!CACHEABLE_PATHS.test(c.req.path)) headers.set('Cache-Control', 'no-store');
  if (!headers.has('Content-Security-Policy')) headers.set('Content-Security-Policy', NO_PAGE);
};

const shareWithOrigins: MiddlewareHandler<AppEnv> = (c, next) => {
  const { CORS_ORIGINS, BASE_URL, IPV4_HOST, IPV6_HOST } = readSettings(c.env);
  // The console asks these names for the address of its browser.
  const origin = [...CORS_ORIGINS, ...(IPV4_HOST || IPV6_HOST ? [BASE_URL] : [])];
  if (origin.length === 0) return next();
  const share = cors({
    origin,
    allowMethods: ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'],
    allowHeaders: [
      'Authorization',
      'Content-Type',
      'Idempotency-Key',
      'If-Match',
      'Last-Event-ID',
      'Mcp-Method',
      'Mcp-Name',
      'Mcp-Protocol-Version',
      'Prefer',
      'X-Branchgate-Bookmark',
      'X-Request-Id',
      'traceparent',
    ],
    exposeHeaders: [
      'Deprecation',
      'ETag',
      'Idempotency-Replayed',
      'Retry-After',
      'Sunset',
      'X-Branchgate-Bookmark',
      'X-RateLimit-Limit',
      'X-RateLimit-Remaining',
      'X-RateLimit-Reset',
      'X-Request-Id',
    ],
    maxAge: 600,
  });
  return share(c, next);
};

interface Bearer {
  identity: Identity;
  /** Of a machine. */
  principal: Principal | null;
}

/**
 * The bearers of the requests that `/mcp` makes of the API. They carry no token, because that of a client of `/mcp` is valid
 * nowhere else.
 */
const handedOn = new WeakMap<Request, Bearer>();

/** The bearer of the request's token. @throws ApiError UNAUTHENTICATED, KEYS_UNAVAILABLE */
async function bearerOf(c: AppContext): Promise<Bearer> {
  const known = handedOn.get(c.req.raw);
  if (known) return known;
  const settings = readSettings(c.env);
  const authorization = c.req.header('authorization') ?? null;
  const timing = { now: new Date(), waitUntil: (work: Promise<unknown>) => c.executionCtx.waitUntil(work) };
  const token = unwrap(bearerToken(authorization));
  const type = machineTypeOf(settings, token, c.req.path === MCP_PATH);
  if (type !== null) {
    const context = { settings, database: c.env.DB, address: connectingIp(c), ...timing };
    const principal = unwrap(await authenticateMachine(type, token, context));
    if (!principal.machine) throw new Error('the principal is a person');
    return { identity: principal, principal };
  }
  const identity = unwrap(await authenticate(authorization, { settings, ...timing }));
  return { identity, principal: null };
}

/** Identifies a client of SQL over HTTP, whose requests are counted by branch. */
async function identifySqlClient(c: AppContext): Promise<void> {
  const { identity, principal } = await bearerOf(c);
  const { tenantId } = identity;
  if (tenantId === null) throw new ApiError('TENANT_REQUIRED');
  c.set('identity', identity);
  c.set('principal', principal ?? unwrap(await materialize(c.env.DB, { ...identity, tenantId }, new Date())));
}

/** Authenticates the request by its path prefix, and counts it against the bucket of its caller. */
const identifyCaller: MiddlewareHandler<AppEnv> = async (c, next) => {
  const { path } = c.req;
  const settings = readSettings(c.env);
  const authorization = c.req.header('authorization') ?? null;
  if (PUBLIC_PATHS.some((pattern) => pattern.test(path))) {
    await enforceRequestLimit(c, bucketOf.public(connectingIp(c)));
  } else if (AGENT_PATHS.test(path)) {
    await enforceRequestLimit(c, bucketOf.agent(connectingIp(c)));
  } else if (PLATFORM_PATHS.test(path)) {
    const failures = bucketOf.failedPlatformSecret(connectingIp(c));
    const check = () => checkPlatformSecret(authorization, settings.PLATFORM_SECRET);
    await guardSecret(c, failures, check, bucketOf.platform(c.req));
    c.set('isPlatform', true);
  } else if (SCIM_PATHS.test(path)) {
    const token = unwrap(bearerToken(authorization));
    const provider = unwrap(await providerOfScimToken(openDatabase(c.env.DB), token));
    countRequest(c, bucketOf.tenant(provider.tenantId, c.req));
    c.set('scimProvider', provider);
  } else if (SECOND_FACTOR_PATHS.test(path)) {
    const token = unwrap(bearerToken(authorization));
    c.set('preAuth', unwrap(await verifyOwnToken(settings, 'pre_auth', token, new Date())));
    countRequest(c, bucketOf.public(connectingIp(c)));
  } else {
    if (path === MCP_PATH) c.set('challenge', mcpChallenge(c));
    const { principal, identity } = await bearerOf(c);
    c.set('identity', identity);
    if (principal?.machine) {
      c.set('principal', principal);
      const ofTenant = bucketOf.tenant(principal.tenantId, c.req);
      countMachineRequest(c, bucketOf.machine(principal.machine, c.req), ofTenant);
      return next();
    }
    const { tenantId } = identity;
    if (tenantId !== null) {
      countRequest(c, bucketOf.tenant(tenantId, c.req));
      c.set('principal', unwrap(await materialize(c.env.DB, { ...identity, tenantId }, new Date())));
    } else if (OWN_PATHS.test(path)) {
      countRequest(c, bucketOf.user(identity, c.req));
    } else {
      throw new ApiError('TENANT_REQUIRED');
    }
  }
  await next();
};

/**
 * The middleware runs in this order: trace, request id, log, headers, rate limit, CORS; then caller,
 * bookmark, writes, body.
 */
const pipeline = operations();
pipeline.use(
  traceRequest,
  assignRequestId,
  logRequest,
  secureHeaders(),
  secure,
  limitRequests,
  shareWithOrigins,
);
/** Before `identifyCaller`: the only route that decides itself who may use it, by the password of a branch or a token. */
pipeline.route('/', sqlRoutes(identifySqlClient));
pipeline.use(identifyCaller, passBookmark, enforceBeforeWrites, boundBody);
for (const routes of [
  healthRoutes,
  projectRoutes,
  branchRoutes,
  bisectionRoutes,
  branchHistoryRoutes,
  snapshotRoutes,
  checkpointRoutes,
  credentialRoutes,
  tableRoutes,
  queryRoutes,
  differenceRoutes,
  rehearsalRoutes,
  trialRoutes,
  changeRoutes,
  followRoutes,
  importRoutes,
  networkRuleRoutes,
  metricsRoutes,
  jobRoutes,
  eventRoutes,
  webhookRoutes,
  auditRoutes,
  memberRoutes,
  identityProviderRoutes,
  companySignInRoutes,
  scimRoutes,
  machineAccessRoutes,
  oauthRoutes,
  oauthGrantRoutes,
  maskingRoutes,
  providerSignInRoutes,
  signInRoutes,
  sessionRoutes,
  platformRoutes,
  platformStandbyRoutes,
  platformAuditRoutes,
  moveRoutes,
  agentRoutes,
]) {
  pipeline.route('/', routes);
}
pipeline.route(
  '/',
  mcpRoutes(async (c, request) => {
    const { identity, principal } = c.var;
    handedOn.set(request, { identity, principal: principal.machine ? principal : null });
    return pipeline.fetch(request, c.env, c.executionCtx);
  }),
);
describe(pipeline);
const NO_OPERATION = 'The API has no such operation. /docs describes all of them.';
pipeline.notFound((c) => {
  const { code, fields } = missing('operation');
  return renderFailure(c, { code, fields: { ...fields, message: NO_OPERATION } });
});
pipeline.onError(onError);

export const app = pipeline;
