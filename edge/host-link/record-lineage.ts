import type { Method, Params } from '../../shared/protocol/operations.ts';
import { BoundedMap } from '../bounded-map.ts';

const REMOVALS: readonly Method[] = ['branch.drop', 'branch.keep', 'project.drop', 'snapshot.drop'];

/** Whether a method takes away what a tenant may need. */
export const isRemoval = (method: Method): boolean => REMOVALS.includes(method);

const RECENT_JOBS = 1_000;

const ADVICE =
  'The host has done work for a job that is not on record, so the records are older than its databases. Nothing on it is dropped ' +
  'until you restore later records or accept these. See docs/operating.md, "After restoring D1 from a backup".';

interface LineageOptions {
  /** Of the object: the newest job that the host has worked for. */
  lastJob: { get: () => string | undefined; put: (id: string) => void };
  /** When each of these jobs was created that is on record. */
  recordedAmong: (jobIds: string[]) => Promise<Map<string, Date>>;
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
  /** Checks that are under way, by job: its first two calls come together. */
  readonly #checks = new Map<string, Promise<boolean>>();

  constructor(options: LineageOptions) {
    this.#options = options;
  }

  /** To be called for every call of the host; a removal waits for it. @returns false: it must not be sent */
  async admits(method: Method, params: Params<Method>): Promise<boolean> {
    const jobId = 'job_id' in params ? params.job_id : null;
    if (isRemoval(method)) return this.#check(jobId, true);
    if (jobId === null || this.#recent.get(jobId)) return true;
    const check =
      this.#checks.get(jobId) ?? this.#check(jobId, false).finally(() => this.#checks.delete(jobId));
    this.#checks.set(jobId, check);
    return check;
  }

  async #check(jobId: string | null, removes: boolean): Promise<boolean> {
    const { lastJob, recordedAmong, log } = this.#options;
    const last = lastJob.get();
    const known = [last, jobId].filter((id) => id !== undefined && id !== null);
    if (known.length === 0) return true;
    const recorded = await recordedAmong(known);
    const lastCreated = last === undefined ? new Date(0) : recorded.get(last);
    if (lastCreated === undefined) {
      log('host.records_went_back', { job_id: last, advice: ADVICE });
      return !removes;
    }
    // What a reconciliation does belongs to no job on record.
    const created = jobId === null ? undefined : recorded.get(jobId);
    if (jobId !== null && created) {
      // A job can outlast later ones, and the newest is the first that an old copy lacks.
      if (created >= lastCreated) {
        // Another check has put a job that can be newer than this one.
        if (lastJob.get() !== last) return this.#check(jobId, removes);
        lastJob.put(jobId);
      }
      this.#recent.set(jobId, true);
    }
    return true;
  }
}
