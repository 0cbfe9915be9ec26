import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { type OpenStream, OpenStreams, serverSentEvent } from '../events/open-streams.ts';
import type { StreamClient, StreamGate } from '../events/stream-admission.ts';
import type { MeasurementEvent } from './measurements.ts';

/** Concurrent streams of one project. */
export const STREAMS_MAX = 20;

interface Subject {
  branchId: string | null;
}

/** The text of a measurement. Its id is the timestamp, which clients return as `Last-Event-ID`. */
function textOf({ at, branches }: MeasurementEvent, projectId: string): string {
  const observed_at = new Date(at).toISOString();
  const data = JSON.stringify({ project_id: projectId, observed_at, branches });
  return serverSentEvent(observed_at, 'measurement', data);
}

/** The measurement as a stream of this subject shows it; null if it shows nothing of it. */
function selected({ at, branches }: MeasurementEvent, { branchId }: Subject): MeasurementEvent | null {
  const chosen = branches.filter(({ branch_id }) => (branchId ?? branch_id) === branch_id);
  return chosen.length > 0 ? { at, branches: chosen } : null;
}

/** The open streams of measurements of one project. */
export class MeasurementStreams {
  readonly #streams: OpenStreams<Subject>;

  constructor(gate: StreamGate) {
    this.#streams = new OpenStreams({ max: STREAMS_MAX, gate });
  }

  /**
   * @param branchId the branch to report; null for all
   * @param missed the events to send first, oldest first
   * @returns or STREAM_LIMIT_REACHED
   */
  async open(
    projectId: string,
    client: StreamClient,
    { branchId, seconds }: { branchId: string | null; seconds: number },
    missed: () => readonly MeasurementEvent[],
  ): Promise<Result<ReadableStream, Failure>> {
    const opened = await this.#streams.open(projectId, client, { branchId }, seconds);
    if (!opened.ok) return opened;
    for (const event of missed()) this.#sendTo(opened.value.stream, projectId, event);
    return ok(opened.value.readable);
  }

  send(projectId: string, event: MeasurementEvent): void {
    for (const stream of this.#streams.all()) this.#sendTo(stream, projectId, event);
  }

  #sendTo(stream: OpenStream<Subject>, projectId: string, event: MeasurementEvent): void {
    const shown = selected(event, stream.subject);
    if (shown) this.#streams.write(stream, textOf(shown, projectId));
  }
}
