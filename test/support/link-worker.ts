import { Hono } from 'hono';
import { ApiError } from '../../edge/errors.ts';
import { callHost, hostLink } from '../../edge/host-link/call-host.ts';
import { HostLink } from '../../edge/host-link/host-link.ts';
import { agentRoutes } from '../../edge/routes/agent.ts';
import { platformRoutes } from '../../edge/routes/platform.ts';
import type { Env } from '../../edge/settings.ts';
import { FAILURES } from '../../shared/failure/failures.ts';
import { BOUNDS, type Bounds } from '../../shared/protocol/bounds.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';

/** The routes and the object under test, plus a way in for the test: what the coordinator would ask of a host. */

export class TestedHostLink extends HostLink {
  constructor(ctx: DurableObjectState, env: Env) {
    super(ctx, env, { ...BOUNDS, ...(env.BOUNDS as Partial<Bounds>) });
  }
}

const app = new Hono<{ Bindings: Env }>()
  .use(async (context, next) => {
    await next();
    context.res.headers.set('X-Request-Id', crypto.randomUUID());
  })
  .route('/', platformRoutes)
  .route('/', agentRoutes)
  .post('/test/call', async (context) => {
    const { host_id, method, params } = await context.req.json<{
      host_id: string;
      method: Method;
      params: Params<Method>;
    }>();
    return context.json(await callHost(context.env, host_id, method, params));
  })
  .get('/test/linked/:host_id', async (context) => {
    return context.json(await hostLink(context.env, context.req.param('host_id')).linked());
  })
  .onError((error, context) => {
    if (!(error instanceof ApiError)) throw error;
    const { code, fields } = error.failure;
    return context.json({ error: code, ...fields }, FAILURES[code].status);
  });

// biome-ignore lint/style/noDefaultExport: a Worker's entry point
export default app;
