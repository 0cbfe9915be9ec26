import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { singleFlight } from '../../shared/single-flight.ts';
import { leaveStreams, mayGoOn, type StreamClient, type StreamGate, takePlace } from './stream-admission.ts';

/** Longest duration of a stream. The client then reconnects (HTML Standard 9.2). */
export const STREAM_SECONDS_MAX = 600;
const RECONNECT_AFTER_MS = 2_000;
const HEARTBEAT = ': still here\n\n';
const HEARTBEAT_MS = 15_000;
/**
 * A disconnected client is detected only by writing to it: the first write causes a TCP reset and a later
 * write fails (workerd 1.20261117). When all places are taken, a new client therefore waits for this many
 * heartbeats.
 */
const PROBES_MAX = 10;
const PROBE_MS = 100;
/**
 * A stream is closed when this much is buffered because its client does not read. A client that reconnects
 * gets up to one hour of measurements immediately: 400 KB for 20 branches.
 */
const WAITING_MAX_BYTES = 1024 * 1024;

/** One client's stream of server-sent events. */
export interface OpenStream<Subject> {
  /** What the client asked for. */
  readonly subject: Subject;
  readonly projectId: string;
  readonly client: StreamClient;
  readonly writer: WritableStreamDefaultWriter<Uint8Array>;
  waitingBytes: number;
  readonly timer: ReturnType<typeof setTimeout>;
}

interface OpenStreamsOptions {
  /** Concurrent streams. Each keeps its object in memory. */
  max: number;
  gate: StreamGate;
  closed?: () => void;
}

const encoder = new TextEncoder();

/** The text of one server-sent event. */
export const serverSentEvent = (id: string | number, event: string, data: string): string =>
  `id: ${id}\nevent: ${event}\ndata: ${data}\n\n`;

/**
 * The open streams of server-sent events of one object. Each ends with the access of its client: at the
 * latest with the heartbeat after that, and with the token.
 */
export class OpenStreams<Subject> {
  readonly #options: OpenStreamsOptions;
  readonly #streams = new Set<OpenStream<Subject>>();
  #heartbeat: ReturnType<typeof setInterval> | undefined;

  constructor(options: OpenStreamsOptions) {
    this.#options = options;
  }

  all(): readonly OpenStream<Subject>[] {
    return [...this.#streams];
  }

  /** @returns or STREAM_LIMIT_REACHED: all places of the project or of the tenant are taken by connected clients */
  async open(
    projectId: string,
    client: StreamClient,
    subject: Subject,
    seconds: number,
  ): Promise<Result<{ readable: ReadableStream; stream: OpenStream<Subject> }, Failure>> {
    const { max, gate } = this.#options;
    const place = await takePlace(gate, client);
    if (!place.ok) return place;
    for (let probes = 0; this.#streams.size >= max; probes++) {
      if (probes === PROBES_MAX) {
        leaveStreams(gate, client);
        return fail({ code: 'STREAM_LIMIT_REACHED', fields: { limit: max } });
      }
      await this.#probeAll();
    }
    const left = Math.max(0, (client.principal.expiresAt.getTime() - Date.now()) / 1000);
    const { readable, writable } = new IdentityTransformStream();
    const stream: OpenStream<Subject> = {
      subject,
      projectId,
      client,
      writer: writable.getWriter(),
      waitingBytes: 0,
      timer: setTimeout(() => this.close(stream), Math.min(seconds, left) * 1000),
    };
    this.#streams.add(stream);
    this.#heartbeat ??= setInterval(() => this.#beat(), HEARTBEAT_MS);
    // Rejects when the client disconnects.
    stream.writer.closed.catch(() => {}).finally(() => this.#forget(stream));
    this.write(stream, `retry: ${RECONNECT_AFTER_MS}\n\n`);
    return ok({ readable, stream });
  }

  /** @returns whether the client's side has taken the text; false if the stream ended before */
  write(stream: OpenStream<Subject>, text: string): Promise<boolean> {
    const bytes = encoder.encode(text);
    stream.waitingBytes += bytes.length;
    if (stream.waitingBytes > WAITING_MAX_BYTES) {
      this.#forget(stream);
      stream.writer.abort().catch(() => {});
      return Promise.resolve(false);
    }
    const taken = () => {
      stream.waitingBytes -= bytes.length;
      return true;
    };
    // `closed` rejects too, and is handled in `open`.
    return stream.writer.write(bytes).then(taken, () => false);
  }

  close(stream: OpenStream<Subject>): void {
    this.#forget(stream);
    stream.writer.close().catch(() => {});
  }

  #beat(): void {
    this.#sendHeartbeats();
    for (const stream of this.#streams) void this.#readmit(stream);
  }

  /** Ends the stream of a client that has lost its access. It reconnects, and the pipeline answers it. */
  async #readmit(stream: OpenStream<Subject>): Promise<void> {
    const { projectId, client } = stream;
    if (!(await mayGoOn(this.#options.gate, projectId, client).catch(() => false))) this.close(stream);
  }

  #sendHeartbeats(): void {
    for (const stream of this.#streams) this.write(stream, HEARTBEAT);
  }

  /** Shared by all clients that wait for a place. */
  readonly #probeAll = singleFlight(async () => {
    this.#sendHeartbeats();
    await new Promise((resolve) => setTimeout(resolve, PROBE_MS));
  });

  /** Stops the heartbeat with the last stream, so that the object can hibernate. */
  #forget(stream: OpenStream<Subject>): void {
    clearTimeout(stream.timer);
    if (!this.#streams.delete(stream)) return;
    leaveStreams(this.#options.gate, stream.client);
    this.#options.closed?.();
    if (this.#streams.size > 0) return;
    if (this.#heartbeat !== undefined) clearInterval(this.#heartbeat);
    this.#heartbeat = undefined;
  }
}
