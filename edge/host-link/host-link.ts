import { DurableObject } from 'cloudflare:workers';
import { BOUNDS, type Bounds } from '../../shared/protocol/bounds.ts';
import { HEARTBEAT } from '../../shared/protocol/frames.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';
import { openDatabase } from '../database/database.ts';
import type { Env } from '../env.ts';
import { logEvent } from '../log.ts';
import { coordinatorOf } from '../projects/coordinator-stub.ts';
import { reconcileHost } from '../reconciliation/reconcile-host.ts';
import { CALLER_HEADER, type Caller, type LinkSocket, Links, type SocketState } from './links.ts';
import { MeasurementFilter, projectsOn } from './measurement-filter.ts';
import { type CallOutcome, failed } from './pending-calls.ts';

/** What may be asked of a host that is shut out. */
const READING: readonly Method[] = ['host.describe', 'host.inventory'];
const RECONCILE_EVERY = 5 * 60_000;
/** After one that failed, for instance because PostgreSQL was still starting, or that met another cluster. */
const RECONCILE_AGAIN = 5_000;

/**
 * Holds the WebSocket of one database host's agent; named by the host's id. An idle link costs nothing: the
 * runtime answers the beats and the object sleeps. All it needs to wake up is kept with its sockets, save the
 * newest epoch, the host's id and whether it may be given work, which are in its storage (`epoch`, `host_id`,
 * `shut_out`).
 */
export class HostLink extends DurableObject<Env> {
  readonly #links: Links;
  readonly #measurements: MeasurementFilter;

  /** @param bounds given by tests alone */
  constructor(ctx: DurableObjectState, env: Env, bounds: Bounds = BOUNDS) {
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
        // The databases of another cluster are not those on record.
        if (!this.#isShutOut()) ctx.waitUntil(this.#measurements.receive(notification));
      },
      log: logEvent,
      clock: { now: Date.now, after },
      bounds,
    });
    this.#measurements = new MeasurementFilter({
      placed: () => projectsOn(openDatabase(env.DB), this.#hostId() ?? ''),
      record: (measurement) =>
        coordinatorOf(env, measurement.project_id).recordMeasurement(measurement, this.#hostId()),
      log: (event, fields) => logEvent(event, { host_id: this.#hostId(), ...fields }),
      now: Date.now,
      bounds,
    });
  }

  /** Whether an agent is linked, has been heard within two beats, and the host may be given work. */
  async linked(): Promise<boolean> {
    return this.#links.linked() && !this.#isShutOut();
  }

  /** Asks the agent for an operation; use `callHost`, which keeps the types and survives the loss of this object. */
  async call(method: Method, params: Params<Method>): Promise<CallOutcome<Method>> {
    if (this.#isShutOut() && !READING.includes(method))
      return failed('HOST_UNAVAILABLE', 'the host runs another PostgreSQL cluster than the one on record');
    return this.#links.call(method, params);
  }

  override async fetch(request: Request): Promise<Response> {
    const caller = JSON.parse(request.headers.get(CALLER_HEADER) ?? '') as Caller;
    this.ctx.storage.kv.put('host_id', caller.hostId);
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
    // workerd leaves the closing handshake of a socket that may sleep to us.
    socket.close();
  }

  override async webSocketError(socket: WebSocket): Promise<void> {
    this.#links.lost(this.#wrap(socket));
  }

  /**
   * Reconciles the host after every handshake and then regularly while it is linked. It runs as an alarm so that
   * no socket waits for it, and so that its calls, which come back to this object, meet nothing that waits for them.
   */
  override async alarm(): Promise<void> {
    const { storage } = this.ctx;
    const hostId = this.#hostId();
    if (hostId === undefined || !this.#links.linked()) return;
    // Before the work: a handshake during it asks for an earlier alarm, which has to stand.
    await storage.setAlarm(Date.now() + RECONCILE_EVERY);
    try {
      await reconcileHost(this.env, hostId, (admitted) => this.#admit(admitted));
      if (!this.#isShutOut()) return;
    } catch (error) {
      logEvent('reconciliation.failed', { host_id: hostId, reason: String(error) });
    }
    const next = (await storage.getAlarm()) ?? Number.POSITIVE_INFINITY;
    await storage.setAlarm(Math.min(next, Date.now() + RECONCILE_AGAIN));
  }

  #hostId(): string | undefined {
    return this.ctx.storage.kv.get<string>('host_id');
  }

  #isShutOut(): boolean {
    return this.ctx.storage.kv.get<boolean>('shut_out') ?? false;
  }

  /** @returns whether that is news */
  #admit(admitted: boolean): boolean {
    if (admitted === !this.#isShutOut()) return false;
    this.ctx.storage.kv.put('shut_out', !admitted);
    return true;
  }

  #wrap(socket: WebSocket): LinkSocket {
    return {
      send: (text) => socket.send(text),
      close: (code, reason) => socket.close(code, reason),
      state: () => (socket.deserializeAttachment() as SocketState | null) ?? { phase: 'closed' },
      keep: (state) => socket.serializeAttachment(state),
      lastBeat: () => this.ctx.getWebSocketAutoResponseTimestamp(socket)?.getTime() ?? 0,
    };
  }
}

function after(milliseconds: number, task: () => void): () => void {
  const timer = setTimeout(task, milliseconds);
  return () => clearTimeout(timer);
}
