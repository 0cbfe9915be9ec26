import { app } from '../../../edge/app.ts';
import { ProjectCoordinator as RealCoordinator } from '../../../edge/coordinator/project-coordinator.ts';
import type { Env } from '../../../edge/env.ts';
import { HostLink as RealHostLink } from '../../../edge/host-link/host-link.ts';
import { Meter } from './meter.ts';

/** The gateway with metered bindings, for the simulation of many hosts. */

let known: Meter | undefined;

const meterOf = (env: Env): Meter => {
  known ??= new Meter(env);
  return known;
};

export class HostLink extends RealHostLink {
  constructor(state: DurableObjectState, env: Env) {
    super(state, meterOf(env).env);
  }
}

export class ProjectCoordinator extends RealCoordinator {
  constructor(state: DurableObjectState, env: Env) {
    super(state, meterOf(env).env);
  }

  /** Rows that this object has written, and the size of its storage. */
  async storageUse(): Promise<{ rows: number; bytes: number }> {
    const { sql } = this.ctx.storage;
    return { rows: sql.exec<{ n: number }>('select total_changes() as n').one().n, bytes: sql.databaseSize };
  }
}

export { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';

/** Each host has an address of its own, as links are limited by address. */
const addressOf = (hostId: string) =>
  `10.${Number.parseInt(hostId.slice(0, 2), 16)}.${Number.parseInt(hostId.slice(2, 4), 16)}.${Number.parseInt(hostId.slice(4, 6), 16)}`;

export default {
  fetch: (request, env, context) => {
    const url = new URL(request.url);
    if (url.pathname === '/test/usage') return Response.json(meterOf(env).read());
    const fromHost = new Request(request);
    fromHost.headers.set('cf-connecting-ip', addressOf(url.searchParams.get('host_id') ?? '000000'));
    return app.fetch(fromHost, meterOf(env).env, context);
  },
} satisfies ExportedHandler<Env>;
