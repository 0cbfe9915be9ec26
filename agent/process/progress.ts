import type { WorkProgress } from '../../shared/protocol/notifications.ts';

/**
 * Called with the share of an operation that is done, from 0 to 1. An estimate can be above.
 * @param details what the job shows beside that
 */
export type OnProgress = (done: number, details?: () => Pick<WorkProgress, 'tables' | 'replay'>) => void;

/** Work that ends sooner is not reported. Milliseconds. */
const REPORT_EVERY_MS = 2_000;

/**
 * Reports the progress of an operation for a job, now and then. Other operations have nobody who reads it.
 */
export function progressOfJob(
  params: object,
  report: (progress: WorkProgress) => void,
  now: () => number = () => performance.now(),
): OnProgress | undefined {
  const { job_id, project_id } = params as { job_id?: unknown; project_id?: unknown };
  if (typeof job_id !== 'string' || typeof project_id !== 'string') return undefined;
  let last = now();
  return (done, details) => {
    if (now() - last < REPORT_EVERY_MS) return;
    last = now();
    report({ project_id, job_id, percent: percentOf(done), ...details?.() });
  };
}

/** What is not finished is never 100 %. */
export const percentOf = (done: number): number => Math.max(0, Math.min(99, Math.floor(100 * done)));

/**
 * The progress of a part of an operation.
 * @param from share that was done before it.
 * @param to share that is done after it
 */
export const partOf = (
  onProgress: OnProgress | undefined,
  from: number,
  to: number,
): OnProgress | undefined =>
  onProgress && ((done, details) => onProgress(from + (to - from) * Math.min(1, done), details));
