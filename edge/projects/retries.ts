import { jobError, retryDelay } from '../jobs/job-failure.ts';
import { logEvent } from '../log.ts';
import type { EarliestAlarm } from './earliest-alarm.ts';

/** Added to the failures in a row, so that the first retry comes after two seconds. */
const ATTEMPTS_AHEAD = 3;

/** Work of a coordinator that its alarm repeats until it succeeds, by the log event of its failure. */
type Work = 'access.not_applied' | 'events.not_published' | 'project.not_looked_after';

/** Backs off so that an object whose host is unavailable can sleep; the return of the host wakes it. */
export class Retries {
  readonly #alarm: EarliestAlarm;
  /** Number of failures in a row. */
  readonly #failures = new Map<Work, number>();

  constructor(alarm: EarliestAlarm) {
    this.#alarm = alarm;
  }

  succeeded(work: Work): void {
    this.#failures.delete(work);
  }

  failed(work: Work, projectId: string, error: unknown): void {
    logEvent(work, { project_id: projectId, ...jobError(error) });
    const failures = this.#failures.get(work) ?? 0;
    this.#alarm.wakeAt(Date.now() + retryDelay(ATTEMPTS_AHEAD + failures));
    this.#failures.set(work, failures + 1);
  }
}
