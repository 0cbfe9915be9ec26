import type { BranchMeasurement } from '../../shared/measurement.ts';
import { OpenStreams, serverSentEvent } from '../streams/open-streams.ts';

/** One measurement of a project, as sent on a stream. */
export interface MeasurementEvent {
  /** Unix milliseconds. */
  at: number;
  branches: BranchMeasurement[];
}

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
  readonly #streams = new OpenStreams<Subject>({ max: STREAMS_MAX });

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
    const opened = await this.#streams.open({ branchId }, seconds);
    if (!opened) return null;
    for (const event of missed()) this.#sendTo(opened.stream, projectId, event);
    return opened.readable;
  }

  send(projectId: string, event: MeasurementEvent): void {
    for (const stream of this.#streams.all()) this.#sendTo(stream, projectId, event);
  }

  #sendTo(
    stream: ReturnType<OpenStreams<Subject>['all']>[number],
    projectId: string,
    event: MeasurementEvent,
  ): void {
    const shown = selected(event, stream.subject);
    if (shown) this.#streams.write(stream, textOf(shown, projectId));
  }
}
