import type { Method, Params } from '../../shared/protocol/operations.ts';
import { BoundedMap } from '../bounded-map.ts';

/** Calls that remove what a tenant may need. */
const DROPS: readonly Method[] = ['branch.drop', 'project.drop', 'snapshot.drop'];

const RECENT_JOBS = 1_000;

const ADVICE =
  'The host has done work for a job that is not on record, so the records are older than its databases. Nothing on it is dropped ' +
  'until you restore later records or accept these. See docs/operating.md, "After restoring D1 from a backup".';

interface LineageOptions {
  /** Of the object: the last job that the host has worked for. */
  lastJob: { get: () => string | undefined; put: (id: string) => void };
  isRecorded: (jobId: string) => Promise<boolean>;
  log: (event: string, fields: Record<string, unknown>) => void;
}

/**
 * Detects that D1 was put back to an older copy, by which a restored branch is still deleted and a renewed lease has ended. A job is
 * written before the host is called for it and never deleted (docs/decisions/0023), so one that is not on record is of a later
 * time. It is remembered until the records are accepted: a new job proves nothing.
 */
export class RecordLineage {
  readonly #options: LineageOptions;
  readonly #recent = new BoundedMap<string, true>(RECENT_JOBS);

  constructor(options: LineageOptions) {
    this.#options = options;
  }

  /** Called before every call of the host. @returns false: it must not be sent */
  async admits(method: Method, params: Params<Method>): Promise<boolean> {
    if (DROPS.includes(method)) return !(await this.#isBroken());
    const jobId = 'job_id' in params ? params.job_id : null;
    if (jobId === null || this.#recent.get(jobId)) return true;
    if (!(await this.#isBroken())) {
      this.#options.lastJob.put(jobId);
      this.#recent.set(jobId, true);
    }
    return true;
  }

  async #isBroken(): Promise<boolean> {
    const { lastJob, isRecorded, log } = this.#options;
    const jobId = lastJob.get();
    if (jobId === undefined || (await isRecorded(jobId))) return false;
    log('host.records_went_back', { job_id: jobId, advice: ADVICE });
    return true;
  }
}
