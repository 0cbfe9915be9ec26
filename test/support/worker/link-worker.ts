import { Hono } from 'hono';
import { app } from '../../../edge/app.ts';
import { coordinatorOf } from '../../../edge/coordinator/coordinator-rpc.ts';
import { ProjectCoordinator as Coordinator } from '../../../edge/coordinator/project-coordinator.ts';
import type { Env } from '../../../edge/env.ts';
import type { Lease } from '../../../edge/failover/primary-lease.ts';
import { HostLink } from '../../../edge/host-link/host-link.ts';
import { hostLink } from '../../../edge/hosts/host-client.ts';
import type { ProjectMeasurement } from '../../../shared/measurement.ts';
import { BOUNDS, type Bounds } from '../../../shared/protocol/bounds.ts';
import type { Method, Params } from '../../../shared/protocol/operations.ts';

/** Remembers what came to it, for the test to ask. */
export class ProjectCoordinator extends Coordinator {
  readonly #came: ProjectMeasurement[] = [];

  override async recordMeasurement(
    ...[measurement, ...more]: Parameters<Coordinator['recordMeasurement']>
  ): Promise<string | null> {
    this.#came.push(measurement);
    return super.recordMeasurement(measurement, ...more);
  }

  async stored(): Promise<unknown> {
    return this.ctx.storage.kv.get('last_measurement') ?? null;
  }

  async came(): Promise<ProjectMeasurement[]> {
    return this.#came;
  }
}

export { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';

/** The gateway, plus a way in for the test: what the coordinator would ask of a host. */

export class TestedHostLink extends HostLink {
  constructor(ctx: DurableObjectState, env: Env) {
    super(ctx, env, { ...BOUNDS, ...(env.BOUNDS as Partial<Bounds>) });
  }

  /** After a change of the stored lease, and an alarm. */
  async lease({ change, rings }: LeaseChange): Promise<FoundLease> {
    const { storage } = this.ctx;
    if (change) storage.kv.put('lease', { ...storage.kv.get<object>('lease'), ...change });
    if (rings) {
      await storage.deleteAlarm();
      await this.alarm();
    }
    const alarm = await storage.getAlarm();
    return { lease: storage.kv.get<Lease>('lease') ?? null, alarmIn: alarm && alarm - Date.now() };
  }
}

export interface LeaseChange {
  change?: Partial<Lease>;
  rings?: boolean;
}

export interface FoundLease {
  lease: Lease | null;
  /** Milliseconds; null: no alarm is set. */
  alarmIn: number | null;
}

const wayIn = new Hono<{ Bindings: Env }>()
  .post('/test/call', async (context) => {
    const { host_id, method, params } = await context.req.json<{
      host_id: string;
      method: Method;
      params: Params<Method>;
    }>();
    return context.json(await hostLink(context.env, host_id).call(method, params));
  })
  .get('/test/measurements/:project_id', async (context) => {
    const coordinator = coordinatorOf(context.env, context.req.param('project_id'));
    return context.json(await (coordinator as unknown as ProjectCoordinator).came());
  })
  .get('/test/monitored/:project_id', async (context) => {
    return context.json(await coordinatorOf(context.env, context.req.param('project_id')).monitor.last());
  })
  .get('/test/stored/:project_id', async (context) => {
    const coordinator = coordinatorOf(context.env, context.req.param('project_id'));
    return context.json(await (coordinator as unknown as ProjectCoordinator).stored());
  })
  .get('/test/kept/:host_id/:project_id', async (context) => {
    const { host_id, project_id } = context.req.param();
    return context.json(await hostLink(context.env, host_id).measurementHead(project_id));
  })
  .post('/test/reconcile/:host_id', async (context) => {
    await hostLink(context.env, context.req.param('host_id')).acceptRecords();
    return context.json({});
  })
  .post('/test/lease/:host_id', async (context) => {
    const link = hostLink(context.env, context.req.param('host_id')) as unknown as TestedHostLink;
    return context.json(await link.lease(await context.req.json<LeaseChange>()));
  })
  .get('/test/linked/:host_id', async (context) => {
    return context.json(await hostLink(context.env, context.req.param('host_id')).linked());
  });

const ABOUT_TABLES = {
  branch_id: '00000000-0000-4000-8000-000000000001',
  database: 'db_shop_prod',
  schema: null,
  after: null,
};

/** For the bench: the same call over the link, and as a request to a server of the host's. */
const calls = new Hono<{ Bindings: Env }>()
  .get('/calls/link/:host_id', async (context) => {
    const outcome = await hostLink(context.env, context.req.param('host_id')).call(
      'table.list',
      ABOUT_TABLES,
    );
    return context.json(outcome, outcome.ok ? 200 : 503);
  })
  .get('/calls/http/:port', async (context) => {
    const answer = await fetch(`http://127.0.0.1:${context.req.param('port')}/`, {
      method: 'POST',
      body: JSON.stringify({ method: 'table.list', params: ABOUT_TABLES }),
    });
    return context.json({ ok: true, value: await answer.json() });
  });

const appOf = (path: string) =>
  path.startsWith('/test/') ? wayIn : path.startsWith('/calls/') ? calls : app;

export default {
  fetch: (request, env, context) => appOf(new URL(request.url).pathname).fetch(request, env, context),
} satisfies ExportedHandler<Env>;
