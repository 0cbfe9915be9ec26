import type { Method } from '../../shared/protocol/operations.ts';

const REMOVALS: readonly Method[] = ['branch.drop', 'branch.keep', 'project.drop', 'snapshot.drop'];

/** Whether a method takes away what a tenant may need. */
export const isRemoval = (method: Method): boolean => REMOVALS.includes(method);

/** Jobs that are remembered until they are read together. */
const REMEMBERED = 32;

const ADVICE =
  'The host has done work for a job that is not on record, so the records are older than its databases. Nothing on it is dropped ' +
  'until you restore later records or accept these. See docs/operating.md, "After restoring D1 from a backup".';

interface LineageOptions {
  /** Of the object: the newest job of the last check, and the jobs that the host has worked for since. */
  jobs: { get: () => string[]; put: (ids: string[]) => void };
  /** When each of these jobs was created that is on record. */
  recordedAmong: (jobIds: string[]) => Promise<Map<string, Date>>;
  log: (event: string, fields: Record<string, unknown>) => void;
}

/**
 * Detects that D1 was put back to an older copy, by which a restored branch is still deleted and a renewed lease has ended. A job is
 * written before the host is called for it and never deleted (docs/decisions/0023), so one that is not on record is of a later
 * time. A missing one is remembered until the records are accepted: a new job proves nothing.
 */
export class RecordLineage {
  readonly #options: LineageOptions;

  constructor(options: LineageOptions) {
    this.#options = options;
  }

  /** To be called for every call of the host that is no removal. The records are read once for many jobs. */
  async remember(jobId: string): Promise<void> {
    const { jobs } = this.#options;
    const isRemembered = () => jobs.get().includes(jobId);
    if (isRemembered()) return;
    // While the records cannot be read, the list grows.
    const isFull = jobs.get().length >= REMEMBERED;
    if (isFull && !(await this.#areOnRecord([]).catch(() => true))) return;
    if (!isRemembered()) jobs.put([...jobs.get(), jobId]);
  }

  /**
   * To be called before every removal.
   * @param jobId null or a random one for a reconciliation
   * @returns false: it must not be sent
   */
  permitsRemoval(jobId: string | null): Promise<boolean> {
    return this.#areOnRecord(jobId === null ? [] : [jobId]);
  }

  /** @param also counts only if it is on record */
  async #areOnRecord(also: string[]): Promise<boolean> {
    const { jobs, recordedAmong, log } = this.#options;
    const remembered = jobs.get();
    if (remembered.length + also.length === 0) return true;
    const recorded = await recordedAmong([...remembered, ...also]);
    const missing = remembered.find((id) => !recorded.has(id));
    if (missing !== undefined) {
      log('host.records_went_back', { job_id: missing, advice: ADVICE });
      return false;
    }
    // A job can outlast later ones, and the newest is the first that an old copy lacks.
    const [newest] = [...recorded].toSorted(([, one], [, other]) => other.getTime() - one.getTime());
    // Another check may have ended, and other jobs may have come.
    const since = jobs.get().filter((id) => !remembered.includes(id));
    if (newest) jobs.put([newest[0], ...since]);
    return true;
  }
}
