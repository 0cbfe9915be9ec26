import { Hono } from 'hono';
import { app } from '../../edge/app.ts';
import { callHost, hostLink } from '../../edge/host-link/call-host.ts';
import { HostLink } from '../../edge/host-link/host-link.ts';
import { ProjectCoordinator as Coordinator } from '../../edge/projects/coordinator.ts';
import { coordinatorOf } from '../../edge/projects/coordinator-stub.ts';
import type { Env } from '../../edge/settings.ts';
import type { ProjectMeasurement } from '../../shared/metrics/measurement.ts';
import { BOUNDS, type Bounds } from '../../shared/protocol/bounds.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';

/** Remembers what came to it, for the test to ask. */
export class ProjectCoordinator extends Coordinator {
  readonly #came: ProjectMeasurement[] = [];

  override async recordMeasurement(measurement: ProjectMeasurement, hostId?: string): Promise<void> {
    this.#came.push(measurement);
    await super.recordMeasurement(measurement, hostId);
  }

  async came(): Promise<ProjectMeasurement[]> {
    return this.#came;
  }
}

export { RateLimiter } from '../../edge/rate-limits/rate-limiter.ts';

/** The gateway, plus a way in for the test: what the coordinator would ask of a host. */

export class TestedHostLink extends HostLink {
  constructor(ctx: DurableObjectState, env: Env) {
    super(ctx, env, { ...BOUNDS, ...(env.BOUNDS as Partial<Bounds>) });
  }
}

const wayIn = new Hono<{ Bindings: Env }>()
  .post('/test/call', async (context) => {
    const { host_id, method, params } = await context.req.json<{
      host_id: string;
      method: Method;
      params: Params<Method>;
    }>();
    return context.json(await callHost(context.env, host_id, method, params));
  })
  .get('/test/measurements/:project_id', async (context) => {
    const coordinator = coordinatorOf(context.env, context.req.param('project_id'));
    return context.json(await (coordinator as unknown as ProjectCoordinator).came());
  })
  .get('/test/linked/:host_id', async (context) => {
    return context.json(await hostLink(context.env, context.req.param('host_id')).linked());
  });

export default {
  fetch: (request, env, context) =>
    (new URL(request.url).pathname.startsWith('/test/') ? wayIn : app).fetch(request, env, context),
} satisfies ExportedHandler<Env>;
