import { type ErrorHandler, Hono, type MiddlewareHandler } from 'hono';
import { FAILURES, type Failure } from '../shared/failure/failures.ts';
import type { AppContext, AppEnv } from './app-env.ts';
import { authenticate } from './authentication/authenticate.ts';
import { ApiError } from './errors.ts';
import { logEvent } from './log.ts';
import { agentRoutes } from './routes/agent.ts';
import { branchRoutes } from './routes/branches.ts';
import { healthRoutes } from './routes/health.ts';
import { jobRoutes, projectJobRoutes } from './routes/jobs.ts';
import { networkRuleRoutes } from './routes/network-rules.ts';
import { platformRoutes } from './routes/platform.ts';
import { projectRoutes } from './routes/projects.ts';
import { readSettings } from './settings.ts';
import { materialize } from './tenancy/materialize.ts';

/** Paths that need no bearer token of a user. Every other path does, whether a route stands there or not. */
const PUBLIC_PATHS: readonly RegExp[] = [/^\/readyz$/, /^\/agent\/v1\//, /^\/platform\/v1\//];

/** Seconds a client should wait before it tries again what failed with 503. */
const RETRY_AFTER_SECONDS = 5;

const REQUEST_ID_FORM = /^[A-Za-z0-9._-]{8,128}$/;

const nameRequest: MiddlewareHandler<AppEnv> = async (c, next) => {
  const given = c.req.header('x-request-id') ?? '';
  c.set('requestId', REQUEST_ID_FORM.test(given) ? given : crypto.randomUUID());
  await next();
  c.header('X-Request-Id', c.var.requestId);
};

const requireUser: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!PUBLIC_PATHS.some((path) => path.test(c.req.path))) {
    const now = new Date();
    const identity = await authenticate(c.req.header('authorization') ?? null, {
      settings: readSettings(c.env),
      now,
      waitUntil: (work) => c.executionCtx.waitUntil(work),
    });
    const { tenantId } = identity;
    if (tenantId === null) throw new ApiError('TENANT_REQUIRED');
    c.set('principal', await materialize(c.env.DB, { ...identity, tenantId }, now));
  }
  await next();
};

/** The error envelope. What really happened goes to the log under the request id, never to the client. */
function renderFailure(c: AppContext, { code, fields }: Failure): Response {
  const { status, message } = FAILURES[code];
  c.header('X-Request-Id', c.var.requestId);
  if (status === 401) c.header('WWW-Authenticate', 'Bearer error="invalid_token"');
  if (status === 503) c.header('Retry-After', String(RETRY_AFTER_SECONDS));
  return c.json({ error: code, message, request_id: c.var.requestId, ...fields }, status);
}

const onError: ErrorHandler<AppEnv> = (error, c) => {
  const failure: Failure = error instanceof ApiError ? error.failure : { code: 'INTERNAL' };
  logEvent('request.failed', {
    request_id: c.var.requestId,
    method: c.req.method,
    path: c.req.path,
    code: failure.code,
    reason: error.message,
    ...(failure.code === 'INTERNAL' && { stack: error.stack }),
  });
  return renderFailure(c, failure);
};

/** The pipeline: name the request, know the user and the tenant, route. */
export const app = new Hono<AppEnv>()
  .use(nameRequest)
  .use(requireUser)
  .route('/', healthRoutes)
  .route('/', agentRoutes)
  .route('/', platformRoutes)
  .route('/api/v1/projects', projectRoutes)
  .route('/api/v1/projects/:project_id/branches', branchRoutes)
  .route('/api/v1/projects/:project_id/network-rules', networkRuleRoutes)
  .route('/api/v1/projects/:project_id/jobs', projectJobRoutes)
  .route('/api/v1/jobs', jobRoutes)
  .notFound((c) => renderFailure(c, { code: 'NOT_FOUND' }))
  .onError(onError);
