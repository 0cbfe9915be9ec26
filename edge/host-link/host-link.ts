import { DurableObject } from 'cloudflare:workers';
import { BOUNDS, type Bounds } from '../../shared/protocol/bounds.ts';
import { HEARTBEAT } from '../../shared/protocol/frames.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';
import { type Coordinators, coordinatorOf, mailsOf } from '../coordinator/coordinator-rpc.ts';
import { type DatabaseBinding, isOneOf, openDatabase } from '../database/database.ts';
import { jobs } from '../database/schema.ts';
import { PrimaryLease } from '../failover/primary-lease.ts';
import { promoteLapsed, syncMember } from '../failover/promotion.ts';
import { isRegistered } from '../hosts/host.ts';
import type { CallOutcome, HostLinkRpc, HostLinks } from '../hosts/host-client.ts';
import { logEvent } from '../log.ts';
import { mailAboutDrills, recordDrill } from '../monitoring/recovery-drills.ts';
import { objectName } from '../object-name.ts';
import { reconcileHost } from '../reconciliation/reconcile-host.ts';
import { isRemoval, RecordLineage } from './handshake.ts';
import { CALLER_HEADER, type Caller, type LinkSocket, Links, type SocketState } from './links.ts';
import { MeasurementHeads } from './measurement-heads.ts';
import { NotificationFilter, projectsOn } from './notification-filter.ts';
import { failed } from './pending-calls.ts';

/** The calls that are allowed while a host is blocked. */
const ALLOWED_WHILE_BLOCKED: readonly Method[] = [
  'host.describe',
  'host.inventory',
  'inventory.digest',
  'inventory.list',
  'member.apply',
  'member.read',
];
const RECONCILE_EVERY = 5 * 60_000;
/**
 * Delay after a failed reconciliation, for instance while PostgreSQL is starting, or while the host is
 * blocked.
 */
const RECONCILE_RETRY = 5_000;
/** Delay after one that has left something to the next. */
const RECONCILE_AGAIN = 30_000;
/** Minimum time between the starts of two reconciliations, the second of which the host has asked for. */
const RECONCILE_APART = 5_000;

/**
 * Holds the WebSocket of the agent of one database host; its name is the host id. An idle link costs nothing:
 * the runtime responds to heartbeats while the object hibernates. The state of a link is attached to its
 * socket; the storage holds the newest epoch, whether the host is blocked, and the last jobs that it has
 * worked for (`epoch`, `shut_out`, `jobs`), its `lease`, and the heads of the measurements (`./measurement-heads.ts`).
 */
export class HostLink
  extends DurableObject<DatabaseBinding & HostLinks & Coordinators>
  implements HostLinkRpc
{
  readonly #hostId = objectName(this.ctx, 'host_id');
  readonly #links: Links;
  readonly #notifications: NotificationFilter;
  readonly #lineage: RecordLineage;
  readonly #heads: MeasurementHeads;
  readonly #lease: PrimaryLease;
  /** Forgotten while the object hibernates, which is longer than `RECONCILE_APART`. */
  #reconciledAt = 0;

  /** @param bounds set only by tests */
  constructor(
    ctx: DurableObjectState,
    env: DatabaseBinding & HostLinks & Coordinators,
    bounds: Bounds = BOUNDS,
  ) {
    super(ctx, env);
    ctx.setWebSocketAutoResponse(new WebSocketRequestResponsePair(HEARTBEAT.request, HEARTBEAT.response));
    this.#links = new Links({
      sockets: () => ctx.getWebSockets().map((socket) => this.#wrap(socket)),
      epoch: {
        newest: () => ctx.storage.kv.get<number>('epoch') ?? 0,
        remember: (epoch) => ctx.storage.kv.put('epoch', epoch),
      },
      onLinked: () => ctx.waitUntil(ctx.storage.setAlarm(Date.now())),
      onNotification: (notification) => {
        // A blocked host runs another cluster, whose databases are not the recorded ones.
        if (!this.#isBlocked()) ctx.waitUntil(this.#notifications.receive(notification));
      },
      log: logEvent,
      clock: { now: Date.now, after },
      bounds,
    });
    this.#lineage = new RecordLineage({
      jobs: {
        get: () => ctx.storage.kv.get<string[]>('jobs') ?? [],
        put: (ids) => ctx.storage.kv.put('jobs', ids),
      },
      recordedAmong: async (ids) => {
        const found = await openDatabase(env.DB)
          .select({ id: jobs.id, createdAt: jobs.createdAt })
          .from(jobs)
          .where(isOneOf(jobs.id, ids));
        return new Map(found.map(({ id, createdAt }) => [id, createdAt]));
      },
      log: (event, fields) => logEvent(event, { host_id: this.#hostId, ...fields }),
    });
    this.#heads = new MeasurementHeads(ctx.storage, after);
    this.#lease = new PrimaryLease({
      hostId: () => this.#hostId,
      kv: ctx.storage.kv,
      wakeBy: (time) => this.#reconcileBy(time),
      promote: (lease, decide) => promoteLapsed(env, this.#hostId, lease, decide),
    });
    this.#notifications = new NotificationFilter({
      placed: () => projectsOn(openDatabase(env.DB), this.#hostId),
      record: {
        measurement: async (measurement) => {
          const { project_id } = measurement;
          const coordinator = coordinatorOf(env, project_id);
          const kept = this.#heads.of(project_id);
          const head = await coordinator.recordMeasurement(measurement, this.#hostId, kept);
          if (head !== null) this.#heads.keep(project_id, head);
        },
        sizes: (sizes) => coordinatorOf(env, sizes.project_id).monitor.recordSizes(sizes, this.#hostId),
        blocks: (blocks) => coordinatorOf(env, blocks.project_id).recordBlocks(blocks, this.#hostId),
        follow: (report) => coordinatorOf(env, report.project_id).recordFollow(report, this.#hostId),
        drill: async (report) => {
          await recordDrill(openDatabase(env.DB), report);
          if (report.problem !== null)
            await mailAboutDrills(env, mailsOf(env), new Date(), report.project_id);
        },
        progress: (progress) => coordinatorOf(env, progress.project_id).recordProgress(progress),
        inventory_outdated: () => this.#reconcileSoon(),
      },
      log: (event, fields) => logEvent(event, { host_id: this.#hostId, ...fields }),
      now: Date.now,
      bounds,
    });
  }

  /**
   * Returns whether an agent is linked and alive (a heartbeat within the last two intervals), and the host is not
   * blocked.
   */
  async linked(): Promise<boolean> {
    return this.#links.linked() && !this.#isBlocked();
  }

  /** Calls an operation of the agent; use `callHost`, which is typed. */
  async call(method: Method, params: Params<Method>, traceparent?: string): Promise<CallOutcome<Method>> {
    if (this.#isBlocked() && !ALLOWED_WHILE_BLOCKED.includes(method))
      return failed('HOST_UNAVAILABLE', 'the host runs another PostgreSQL cluster than the one on record');
    const jobId = 'job_id' in params ? params.job_id : null;
    const refused = isRemoval(method) ? await this.#refusal(jobId) : null;
    if (refused) return refused;
    const outcome = this.#links.call(method, params, traceparent);
    // After the call, which would wait until this is on disk.
    if (jobId !== null && !isRemoval(method))
      this.ctx.waitUntil(this.#lineage.remember(jobId).catch(() => {}));
    return outcome;
  }

  /** @returns null if the records permit a removal */
  async #refusal(jobId: string | null): Promise<CallOutcome<Method> | null> {
    const isPermitted = await this.#lineage.permitsRemoval(jobId).catch(() => null);
    if (isPermitted === null) return failed('HOST_UNAVAILABLE', 'the records of the host cannot be read');
    return isPermitted
      ? null
      : failed('HOST_UNAVAILABLE', 'the records are older than the host, so nothing is removed');
  }

  async measurementHead(projectId: string): Promise<string | null> {
    return this.#heads.of(projectId);
  }

  async reconcile(): Promise<void> {
    await this.#reconcileSoon();
  }

  async acceptRecords(): Promise<void> {
    logEvent('host.records_accepted', {
      host_id: this.#hostId,
      job_ids: this.ctx.storage.kv.get('jobs'),
    });
    this.ctx.storage.kv.delete('jobs');
    await this.ctx.storage.setAlarm(Date.now());
  }

  async forget(): Promise<void> {
    this.#links.endAll('removed');
    await this.ctx.storage.deleteAlarm();
    await this.ctx.storage.deleteAll();
    this.#heads.forget();
  }

  override async fetch(request: Request): Promise<Response> {
    const caller = JSON.parse(request.headers.get(CALLER_HEADER) ?? '') as Caller;
    const { 0: client, 1: server } = new WebSocketPair();
    this.ctx.acceptWebSocket(server);
    this.#links.accept(this.#wrap(server), caller);
    return new Response(null, { status: 101, webSocket: client });
  }

  override async webSocketMessage(socket: WebSocket, message: string | ArrayBuffer): Promise<void> {
    await this.#links.receive(this.#wrap(socket), message);
  }

  override async webSocketClose(socket: WebSocket): Promise<void> {
    this.#links.lost(this.#wrap(socket));
    // workerd does not complete the closing handshake of a hibernatable socket.
    socket.close();
  }

  override async webSocketError(socket: WebSocket): Promise<void> {
    this.#links.lost(this.#wrap(socket));
  }

  /**
   * Reconciles the host after every handshake, when it asks for it, and then regularly while it is linked. It
   * runs as an alarm because its calls return to this object, which would deadlock inside a socket event.
   */
  override async alarm(): Promise<void> {
    const { storage } = this.ctx;
    const hostId = this.#hostId;
    await this.#lease.poll();
    if (!this.#links.linked()) return;
    // The handshake began, or this object was lost, while the host was being removed.
    const db = openDatabase(this.env.DB);
    if (!(await isRegistered(db, hostId))) return this.forget();
    this.#reconciledAt = Date.now();
    // Set before the work, so that it does not overwrite the earlier alarm of a handshake in the meantime.
    await storage.setAlarm(this.#reconciledAt + RECONCILE_EVERY);
    await this.#lease.schedule(this.#reconciledAt);
    try {
      // The databases of another member are those of its primary, and none is a leftover.
      const { serves, again } = await syncMember(this.env, hostId, new Date());
      if (again !== null) await this.#reconcileBy(Date.now() + again);
      if (!serves) return;
      this.#heads.retain(new Set(await projectsOn(db, hostId)));
      const isComplete = await reconcileHost(this.env, hostId, (admitted) => this.#admit(admitted));
      if (!this.#isBlocked()) {
        if (!isComplete) await this.#reconcileBy(Date.now() + RECONCILE_AGAIN);
        return;
      }
    } catch (error) {
      logEvent('reconcile.failed', { host_id: hostId, reason: String(error) });
    }
    await this.#reconcileBy(Date.now() + RECONCILE_RETRY);
  }

  async renewLease(generation: number, seconds: number): Promise<boolean> {
    return this.#lease.renew(generation, seconds);
  }

  async dropLease(generation: number): Promise<boolean> {
    return this.#lease.drop(generation);
  }

  #reconcileSoon(): Promise<void> {
    return this.#reconcileBy(Math.max(Date.now(), this.#reconciledAt + RECONCILE_APART));
  }

  /** An earlier alarm stays. */
  async #reconcileBy(time: number): Promise<void> {
    if (!Number.isFinite(time)) return;
    const { storage } = this.ctx;
    const next = await storage.getAlarm();
    if (next === null || next > time) await storage.setAlarm(time);
  }

  #isBlocked(): boolean {
    return this.ctx.storage.kv.get<boolean>('shut_out') ?? false;
  }

  /** @returns whether this changes anything */
  #admit(admitted: boolean): boolean {
    if (admitted === !this.#isBlocked()) return false;
    this.ctx.storage.kv.put('shut_out', !admitted);
    return true;
  }

  #wrap(socket: WebSocket): LinkSocket {
    return {
      send: (text) => socket.send(text),
      close: (code, reason) => socket.close(code, reason),
      state: () => (socket.deserializeAttachment() as SocketState | null) ?? { phase: 'closed' },
      setState: (state) => socket.serializeAttachment(state),
      lastHeartbeat: () => this.ctx.getWebSocketAutoResponseTimestamp(socket)?.getTime() ?? 0,
    };
  }
}

function after(milliseconds: number, task: () => void): () => void {
  const timer = setTimeout(task, milliseconds);
  return () => clearTimeout(timer);
}
