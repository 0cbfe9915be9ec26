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

/** What an object has written. */
export interface StorageUse {
  /** Rows, without those of the history. */
  rows: number;
  /** The size of its storage. */
  bytes: number;
}

function writtenBy({ storage: { sql } }: DurableObjectState): StorageUse {
  const count = (query: string) => sql.exec<{ n: number }>(query).one().n;
  const hasHistory = count("select count(*) as n from sqlite_master where name = 'samples'") > 0;
  // With each row of the history the head is stored.
  const ofHistory = hasHistory ? 2 * count('select count(*) as n from samples') : 0;
  return { rows: count('select total_changes() as n') - ofHistory, bytes: sql.databaseSize };
}

export class HostLink extends RealHostLink {
  constructor(state: DurableObjectState, env: Env) {
    super(state, meterOf(env).env);
  }

  async storageUse(): Promise<StorageUse> {
    return writtenBy(this.ctx);
  }
}

export class ProjectCoordinator extends RealCoordinator {
  constructor(state: DurableObjectState, env: Env) {
    super(state, meterOf(env).env);
  }

  async storageUse(): Promise<StorageUse> {
    return writtenBy(this.ctx);
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
