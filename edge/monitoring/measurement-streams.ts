import type { BranchMeasurement } from '../../shared/measurement.ts';

/** One measurement of a project, as a stream tells it. */
export interface MeasurementEvent {
  /** Unix milliseconds. */
  at: number;
  branches: BranchMeasurement[];
}

/** Streams of one project at the same time. Each keeps its object in memory. */
export const STREAMS_MAX = 20;
/** After that a stream ends, and its client asks for the next (HTML Standard 9.2). */
export const STREAM_SECONDS_MAX = 600;
const RECONNECT_AFTER_MS = 2_000;
const BEAT = ': still here\n\n';
const BEAT_MS = 15_000;
/**
 * A client's going is noticed by writing to it alone: TCP answers the first write, and the next one fails (workerd
 * 1.20261117). So a newcomer who finds no place has this many beats written, as long as it takes.
 */
const PROBES_MAX = 10;
const PROBE_MS = 100;
/**
 * A client that does not read has its stream ended when this much waits for it. Who comes again is told up to an hour
 * at once: 400 KB for 20 branches.
 */
const WAITING_MAX_BYTES = 1024 * 1024;

interface OpenStream {
  branchId: string | null;
  writer: WritableStreamDefaultWriter<Uint8Array>;
  waitingBytes: number;
  timer: ReturnType<typeof setTimeout>;
}

const encoder = new TextEncoder();

/** One event of `text/event-stream`. Its id is the moment, so that `Last-Event-ID` says what came last. */
function eventOf({ at, branches }: MeasurementEvent, projectId: string): string {
  const observed_at = new Date(at).toISOString();
  const data = JSON.stringify({ project_id: projectId, observed_at, branches });
  return `id: ${observed_at}\nevent: measurement\ndata: ${data}\n\n`;
}

/** The server-sent events of one project: who listens, and what is sent to them. */
export class MeasurementStreams {
  readonly #streams = new Set<OpenStream>();
  #beat: ReturnType<typeof setInterval> | undefined;
  #probe: Promise<void> | null = null;

  /**
   * @param branchId of the one branch to tell of; null for all
   * @param missed what to tell at once, oldest first
   * @returns null when there is no place, not even after whoever is gone was looked for
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
    this.#beat ??= setInterval(() => this.#beatAll(), BEAT_MS);
    // Fails when the client goes.
    stream.writer.closed.catch(() => {}).finally(() => this.#forget(stream));
    this.#write(stream, `retry: ${RECONNECT_AFTER_MS}\n\n`);
    for (const event of missed()) this.#tell(stream, projectId, event);
    return readable;
  }

  send(projectId: string, event: MeasurementEvent): void {
    for (const stream of this.#streams) this.#tell(stream, projectId, event);
  }

  #tell(stream: OpenStream, projectId: string, { at, branches }: MeasurementEvent): void {
    const told = branches.filter(({ branch_id }) => (stream.branchId ?? branch_id) === branch_id);
    if (told.length > 0) this.#write(stream, eventOf({ at, branches: told }, projectId));
  }

  #beatAll(): void {
    for (const stream of this.#streams) this.#write(stream, BEAT);
  }

  /** Of all newcomers together. */
  async #probeAll(): Promise<void> {
    this.#beatAll();
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
    // `closed` tells of it.
    written.catch(() => {});
  }

  #close(stream: OpenStream): void {
    this.#forget(stream);
    stream.writer.close().catch(() => {});
  }

  /** With nobody left nothing ticks, so that the object can leave memory. */
  #forget(stream: OpenStream): void {
    clearTimeout(stream.timer);
    this.#streams.delete(stream);
    if (this.#streams.size > 0) return;
    if (this.#beat !== undefined) clearInterval(this.#beat);
    this.#beat = undefined;
  }
}
