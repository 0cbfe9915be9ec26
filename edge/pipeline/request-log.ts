import type { MiddlewareHandler } from 'hono';
import { matchedRoutes } from 'hono/route';
import { logEvent } from '../log.ts';
import { continueTrace, traced } from '../trace.ts';
import type { AppContext, AppEnv } from './context.ts';
import { REQUEST_ID_FORM } from './response-headers.ts';

export const assignRequestId: MiddlewareHandler<AppEnv> = async (c, next) => {
  const given = c.req.header('x-request-id') ?? '';
  c.set('requestId', REQUEST_ID_FORM.test(given) ? given : crypto.randomUUID());
  await next();
  // `c.header` would copy the whole response and turn its body into a stream.
  c.res.headers.set('X-Request-Id', c.var.requestId);
};

/** Continues the trace of the client, or begins one. */
export const traceRequest: MiddlewareHandler<AppEnv> = (c, next) =>
  traced(continueTrace(c.req.header('traceparent')), next);

/** The route that answers, which is the first of those that match; that of the pipeline if none does. */
const routeOf = (c: AppContext) => {
  const routes = matchedRoutes(c);
  return (routes.find(({ method }) => method !== 'ALL') ?? routes.at(-1))?.path;
};

/** Logs one line per request, with the route instead of the path, which may contain a mistyped secret. */
export const logRequest: MiddlewareHandler<AppEnv> = async (c, next) => {
  const start = Date.now();
  await next();
  logEvent('request', {
    request_id: c.var.requestId,
    method: c.req.method,
    route: routeOf(c),
    status: c.res.status,
    duration_ms: Date.now() - start,
    tenant: c.var.principal?.tenantId ?? null,
    ...c.var.failed,
  });
};
