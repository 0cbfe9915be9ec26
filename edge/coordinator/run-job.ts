import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import type { Database } from '../database/database.ts';
import type { JobRow } from '../database/schema.ts';
import type { CreationProgress } from '../idempotency/idempotency-key.ts';
import type { JobRunner } from '../jobs/job-runner.ts';
import type { ProjectMonitor } from '../monitoring/project-monitor.ts';
import type { StorageQuota } from '../monitoring/storage-quota.ts';
import type { Settings } from '../settings.ts';

/** What work on a project's branches needs of its coordinator. */
export interface CoordinatorParts {
  db: Database;
  settings: () => Settings;
  monitor: ProjectMonitor;
  quota: StorageQuota;
  isLinked: (hostId: string) => Promise<boolean>;
  /**
   * Sets the alarm that finds the work after a crash. It guards writes of the next seconds, so it is set
   * again after a wait.
   */
  armAlarm: () => void;
  running: () => Running;
  /** Called when a job has left something behind that has an end of its own. */
  changed: () => void;
}

/** What runs the jobs of a project. */
export interface Running {
  runner: JobRunner;
  waitUntil: (work: Promise<unknown>) => void;
}

/** Runs a creation and waits for its end, but no longer than its client waits. */
export function runCreation(
  { runner, waitUntil }: Running,
  job: JobRow,
  waitMs: number,
): Promise<Result<CreationProgress, Failure>> {
  waitUntil(runner.start(job));
  return awaitCreation(runner, job.id, waitMs);
}

export async function awaitCreation(
  runner: JobRunner,
  jobId: string,
  waitMs: number,
): Promise<Result<CreationProgress, Failure>> {
  const end = await runner.endOf(jobId, waitMs);
  if (end && !end.ok) return end;
  if (end && !end.value) throw new Error(`job ${jobId} ended without a response`);
  return ok(end?.value ? { response: end.value } : { response: null, jobId });
}
