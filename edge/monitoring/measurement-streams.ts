import type { BranchMeasurement } from '../../shared/measurement.ts';

/** One measurement of a project, as sent on a stream. */
export interface MeasurementEvent {
  /** Unix milliseconds. */
  at: number;
  branches: BranchMeasurement[];
}

/** Concurrent streams of one project. Each keeps its object in memory. */
export const STREAMS_MAX = 20;
/** Longest duration of a stream. The client then reconnects (HTML Standard 9.2). */
export const STREAM_SECONDS_MAX = 600;
const RECONNECT_AFTER_MS = 2_000;
const HEARTBEAT = ': still here\n\n';
const HEARTBEAT_MS = 15_000;
/**
 * A disconnected client is detected only by writing to it: the first write causes a TCP reset and a later write fails
 * (workerd 1.20261117). When all slots are taken, a new client therefore waits for this many heartbeats.
 */
const PROBES_MAX = 10;
const PROBE_MS = 100;
/**
 * A stream is closed when this much is buffered because its client does not read. A client that reconnects gets up to
 * one hour of measurements immediately: 400 KB for 20 branches.
 */
const WAITING_MAX_BYTES = 1024 * 1024;

interface OpenStream {
  branchId: string | null;
  writer: WritableStreamDefaultWriter<Uint8Array>;
  waitingBytes: number;
  timer: ReturnType<typeof setTimeout>;
}

const encoder = new TextEncoder();

/** One event of `text/event-stream`. Its id is the timestamp, which clients return as `Last-Event-ID`. */
function eventOf({ at, branches }: MeasurementEvent, projectId: string): string {
  const observed_at = new Date(at).toISOString();
  const data = JSON.stringify({ project_id: projectId, observed_at, branches });
  return `id: ${observed_at}\nevent: measurement\ndata: ${data}\n\n`;
}

/** The open streams of server-sent events of one project. */
export class MeasurementStreams {
  readonly #streams = new Set<OpenStream>();
  #heartbeat: ReturnType<typeof setInterval> | undefined;
  #probe: Promise<void> | null = null;

  /**
   * @param branchId the branch to report; null for all
   * @param missed the events to send first, oldest first
   * @returns null if all slots are taken by connected clients
   */
  async open(
    projectId: string,
    { branchId, seconds }: { branchId: string | null; seconds: number },
    missed: () => readonly MeasurementEvent[],
  ): Promise<ReadableStream | null> {
    for (let probes = 0; this.#streams.size >= STREAMS_MAX; probes++) {
      if (probes === PROBES_MAX) return null;
      this.#probe ??= this.#probeAll();
      await this.#probe;
    }
    const { readable, writable } = new IdentityTransformStream();
    const stream: OpenStream = {
      branchId,
      writer: writable.getWriter(),
      waitingBytes: 0,
      timer: setTimeout(() => this.#close(stream), seconds * 1000),
    };
    this.#streams.add(stream);
    this.#heartbeat ??= setInterval(() => this.#sendHeartbeats(), HEARTBEAT_MS);
    // Rejects when the client disconnects.
    stream.writer.closed.catch(() => {}).finally(() => this.#forget(stream));
    this.#write(stream, `retry: ${RECONNECT_AFTER_MS}\n\n`);
    for (const event of missed()) this.#sendEvent(stream, projectId, event);
    return readable;
  }

  send(projectId: string, event: MeasurementEvent): void {
    for (const stream of this.#streams) this.#sendEvent(stream, projectId, event);
  }

  #sendEvent(stream: OpenStream, projectId: string, { at, branches }: MeasurementEvent): void {
    const selected = branches.filter(({ branch_id }) => (stream.branchId ?? branch_id) === branch_id);
    if (selected.length > 0) this.#write(stream, eventOf({ at, branches: selected }, projectId));
  }

  #sendHeartbeats(): void {
    for (const stream of this.#streams) this.#write(stream, HEARTBEAT);
  }

  /** Shared by all clients that wait for a slot. */
  async #probeAll(): Promise<void> {
    this.#sendHeartbeats();
    await new Promise((resolve) => setTimeout(resolve, PROBE_MS));
    this.#probe = null;
  }

  #write(stream: OpenStream, text: string): void {
    const bytes = encoder.encode(text);
    stream.waitingBytes += bytes.length;
    if (stream.waitingBytes > WAITING_MAX_BYTES) {
      this.#forget(stream);
      stream.writer.abort().catch(() => {});
      return;
    }
    const written = stream.writer.write(bytes).then(() => {
      stream.waitingBytes -= bytes.length;
    });
    // `closed` rejects too, and is handled in `open`.
    written.catch(() => {});
  }

  #close(stream: OpenStream): void {
    this.#forget(stream);
    stream.writer.close().catch(() => {});
  }

  /** Stops the heartbeat with the last stream, so that the object can hibernate. */
  #forget(stream: OpenStream): void {
    clearTimeout(stream.timer);
    this.#streams.delete(stream);
    if (this.#streams.size > 0) return;
    if (this.#heartbeat !== undefined) clearInterval(this.#heartbeat);
    this.#heartbeat = undefined;
  }
}
