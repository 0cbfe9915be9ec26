import type { Params } from '../../shared/protocol/operations.ts';
import { ProjectGate } from '../process/project-gate.ts';
import { finding } from './source-address.ts';

const CANCELLED = finding('tables', 'The copy was cancelled.');

/** The copies that are under way in this process, each of which can be stopped. */
export class Copies {
  /** Each takes some sessions, and a part of the disk and of the network for as long as it lasts. */
  readonly #gate = new ProjectGate({ ofProject: 1, ofHost: 3, noun: 'copy of a source' });
  /** By job, in the order of their beginning. */
  readonly #running = new Map<string, { project_id: string; follows: boolean; stop: AbortController }>();

  /**
   * @param copy stops when its signal aborts, whose reason is a finding
   * @throws HostError PROJECT_BUSY, HOST_BUSY
   */
  async run<T>(
    { job_id, project_id, follow }: Pick<Params<'transfer.copy'>, 'job_id' | 'project_id' | 'follow'>,
    copy: (stop: AbortController) => Promise<T>,
  ): Promise<T> {
    const leave = this.#gate.enter(project_id);
    const stop = new AbortController();
    this.#running.set(job_id, { project_id, follows: follow !== null, stop });
    try {
      return await copy(stop);
    } finally {
      this.#running.delete(job_id);
      leave();
    }
  }

  /** @returns false if no copy of this job is under way */
  stop(jobId: string): boolean {
    const running = this.#running.get(jobId);
    running?.stop.abort(CANCELLED);
    return running !== undefined;
  }

  /** The projects that will follow when their copies end. @param jobId those that began before this one only */
  following(jobId?: string): string[] {
    const jobs = [...this.#running];
    const before = jobs.findIndex(([id]) => id === jobId);
    return (before === -1 ? jobs : jobs.slice(0, before)).flatMap(([, { project_id, follows }]) =>
      follows ? [project_id] : [],
    );
  }
}
