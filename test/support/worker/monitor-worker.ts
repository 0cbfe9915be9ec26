import { DurableObject } from 'cloudflare:workers';
import type { Principal } from '../../../edge/authentication/principal.ts';
import { type BranchRequest, reserveBranches } from '../../../edge/branches/create-branches.ts';
import type { LifespanChange } from '../../../edge/branches/expiry.ts';
import { coordinatorOf } from '../../../edge/coordinator/coordinator-rpc.ts';
import { ProjectCoordinator } from '../../../edge/coordinator/project-coordinator.ts';
import { openDatabase } from '../../../edge/database/database.ts';
import type { Env } from '../../../edge/env.ts';
import type { Mail } from '../../../edge/mail/mail.ts';
import { Outbox } from '../../../edge/mail/outbox.ts';
import { MeasurementStore } from '../../../edge/monitoring/measurements.ts';
import type { PointsByBranch, Range } from '../../../edge/monitoring/metric-history.ts';
import { readSettings } from '../../../edge/settings.ts';
import type { ProjectBlocks } from '../../../shared/block.ts';
import type { ProjectMeasurement } from '../../../shared/measurement.ts';

export { HostLink } from '../../../edge/host-link/host-link.ts';
export { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';

const MINUTE = 60_000;

/**
 * A project's measurements under a clock that the test sets, and the coordinator with a look into its
 * storage.
 */

/** What the link of the host keeps, which an object that loses its memory does not lose. */
const heads = new Map<string, string>();

export class TestedMeasurements extends DurableObject<Env> {
  readonly #name = String(this.ctx.id);
  readonly #measurements = new MeasurementStore(
    this.ctx.storage,
    (this.env as unknown as { INTERVAL_SECONDS: number }).INTERVAL_SECONDS,
    async () => heads.get(this.#name) ?? null,
  );

  constructor(state: DurableObjectState, env: Env) {
    super(state, env);
    void state.blockConcurrencyWhile(() => this.#measurements.load());
  }

  async record(
    measured: ProjectMeasurement[],
    branches: { id: string; branchName: string }[],
    nows: number[],
  ) {
    return measured.map((measurement, n) => this.#record(measurement, branches, nows[n] ?? 0));
  }

  #record(...measured: [ProjectMeasurement, { id: string; branchName: string }[], now: number]) {
    const event = this.#measurements.record(...measured, 'the host');
    heads.set(this.#name, this.#measurements.head() ?? '');
    return event;
  }

  /** As if the link had never got the last heads. @param head that it has instead */
  async loseKept(head: string | null) {
    if (head === null) heads.delete(this.#name);
    else heads.set(this.#name, head);
  }

  async kept() {
    return heads.get(this.#name) ?? null;
  }

  async last() {
    return this.#measurements.last();
  }

  async isOverdue(now: number) {
    return this.#measurements.isOverdue(now);
  }

  async read(branchId: string, range: Range) {
    return this.#measurements.read(branchId, range);
  }

  async after(moment: number, limit: number) {
    return this.#measurements.after(moment, limit);
  }

  /** How many instants are kept, by their step in milliseconds. */
  async counts() {
    const { sql } = this.ctx.storage;
    const samples = sql
      .exec<{ step: number; metrics: string }>('select step, metrics from samples')
      .toArray();
    const { recent = {} } = JSON.parse(heads.get(this.#name) ?? '{}') as { recent?: PointsByBranch };
    const instants = [
      ...samples.map(({ step, metrics }) => ({ step, points: JSON.parse(metrics) as PointsByBranch })),
      { step: MINUTE, points: recent },
    ].flatMap(({ step, points }) =>
      Object.values(points).flatMap((found) => found.map(({ at }) => ({ step, at }))),
    );
    const bySteps = Map.groupBy(instants, ({ step }) => step);
    return Object.fromEntries(
      [...bySteps].map(([step, found]) => [step, new Set(found.map(({ at }) => at)).size]),
    );
  }

  /** The characters of the longest row, and of the head. */
  async longest() {
    const { sql } = this.ctx.storage;
    const { n } = sql.exec<{ n: number }>('select max(length(metrics)) as n from samples').one();
    return Math.max(n, heads.get(this.#name)?.length ?? 0);
  }

  async rowsWritten() {
    return this.ctx.storage.sql.exec<{ n: number }>('select total_changes() as n').one().n;
  }

  /** Loses its memory, as an idle object does. */
  async reset() {
    this.ctx.abort('reset by the test');
  }

  /** Rows that statements write while the history records this, those of indexes included. */
  async chargedRows(
    measured: ProjectMeasurement,
    branches: { id: string; branchName: string }[],
    now: number,
  ) {
    const { sql } = this.ctx.storage;
    const exec = sql.exec.bind(sql);
    let rows = 0;
    Object.defineProperty(sql, 'exec', {
      configurable: true,
      value: (...args: Parameters<typeof exec>) => {
        const cursor = exec(...args);
        rows += cursor.rowsWritten;
        return cursor;
      },
    });
    try {
      this.#record(measured, branches, now);
    } finally {
      Reflect.deleteProperty(sql, 'exec');
    }
    return rows;
  }
}

export class TestedOutbox extends DurableObject<Env> {
  #woken: number[] = [];
  #sent: Promise<unknown> = Promise.resolve();
  readonly #outbox = new Outbox({
    storage: this.ctx.storage,
    settings: () => readSettings(this.env),
    wakeAt: (moment) => this.#woken.push(moment),
    waitUntil: (work) => {
      this.#sent = work;
    },
  });

  /** @returns how many mails wait, and for when the object asked to be woken */
  async put(mail: Mail, now: number) {
    this.#woken = [];
    this.#outbox.put(mail, now);
    await this.#sent;
    return this.#state();
  }

  async send(now: number) {
    this.#woken = [];
    await this.#outbox.send(now);
    return this.#state();
  }

  #state() {
    const waiting = this.ctx.storage.kv.get<unknown[]>('outbox')?.length ?? 0;
    return { waiting, wokenAt: this.#woken.at(-1) ?? null };
  }
}

export class TestedCoordinator extends ProjectCoordinator {
  /** What its storage holds, save measurements and their history. */
  async inspect() {
    const { last_measurement, ...kept } = Object.fromEntries(await this.ctx.storage.list());
    return { kept, alarm: await this.ctx.storage.getAlarm() };
  }

  /** All concurrently. */
  async changeLifespans(changes: LifespanChange[]) {
    return Promise.all(changes.map((change) => this.changeLifespan(change)));
  }

  /** Keeps measurements as if each had come when it was made, and notifies nobody. */
  async remember(measured: ProjectMeasurement[]) {
    await this.measurements.load();
    for (const measurement of measured) {
      const branches = measurement.branches.map(({ branch_id: id }) => ({ id, branchName: id }));
      this.measurements.record(measurement, branches, Date.parse(measurement.observed_at));
    }
  }

  /** As if it had crashed after it stored the observation. */
  async interruptBlocks(blocks: ProjectBlocks) {
    this.ctx.storage.kv.put('pending_blocks', { observed: blocks });
  }

  /** Its alarm, as the runtime would call it. */
  async ring() {
    await this.alarm();
  }

  /** Loses its memory and every call that has not been answered. */
  async reset() {
    this.ctx.abort('reset by the test');
  }

  /** All in parallel. */
  async reserveBranches(requests: BranchRequest[], sizes: Record<string, number> = {}) {
    const reserve = (request: BranchRequest) => {
      const branchIds = request.branches.map(({ id }) => id);
      const admission = { ...request, projectId: request.project.id, branchIds };
      return this.quota.reserveWithinQuota(admission, sizes, () =>
        reserveBranches(openDatabase(this.env.DB), readSettings(this.env), request, new Date()),
      );
    };
    return Promise.all(requests.map(reserve));
  }

  /** Whether a checkpoint of the branch has room. */
  fileExcess(projectId: string, branchId: string) {
    return this.quota.fileExcess(projectId, branchId);
  }
}

interface TestedEnv extends Env {
  OUTBOX: DurableObjectNamespace<TestedOutbox>;
  MEASUREMENTS: DurableObjectNamespace<TestedMeasurements>;
  PROJECT_COORDINATOR: DurableObjectNamespace<TestedCoordinator>;
}

export interface MonitorCall {
  object: 'measurements' | 'coordinator' | 'monitor' | 'outbox';
  /** Of the object. */
  name: string;
  method: string;
  args: unknown[];
}

type Callable = Record<string, (...args: unknown[]) => Promise<unknown>>;

function objectOf(env: TestedEnv, { object, name }: MonitorCall): Callable {
  const measurements = env.MEASUREMENTS.get(env.MEASUREMENTS.idFromName(name));
  const coordinator = coordinatorOf(env, name);
  const outbox = env.OUTBOX.get(env.OUTBOX.idFromName(name));
  return { measurements, outbox, coordinator, monitor: coordinator.monitor }[object] as unknown as Callable;
}

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    if (url.pathname.startsWith('/stream/')) {
      const projectId = url.pathname.slice('/stream/'.length);
      const wanted = JSON.parse(url.searchParams.get('wanted') ?? '');
      const userId = url.searchParams.get('user') ?? '';
      const principal: Principal = {
        issuer: 'i',
        gid: userId,
        email: 'ada@example.com',
        role: 'owner',
        scopes: ['branchgate:read'],
        service: 'branchgate',
        tenantId: 'acme',
        userId,
        issuedAt: new Date(),
        expiresAt: new Date(Date.now() + 60 * MINUTE),
      };
      const client = { id: crypto.randomUUID(), principal };
      const outcome = await coordinatorOf(env, projectId).monitor.stream(projectId, client, wanted);
      // Whose type is not known is compressed by Miniflare, and that waits for more.
      const headers = { 'Content-Type': 'text/event-stream' };
      return outcome.ok ? new Response(outcome.value, { headers }) : Response.json(outcome, { status: 429 });
    }
    const call = await request.json<MonitorCall>();
    try {
      const result = await objectOf(env, call)[call.method]?.(...call.args);
      return Response.json(result ?? null);
    } catch (error) {
      return Response.json({ error: String(error) }, { status: 500 });
    }
  },
} satisfies ExportedHandler<TestedEnv>;
