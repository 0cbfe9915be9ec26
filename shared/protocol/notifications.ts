import { z } from 'zod';
import { ProjectBlocks } from '../block.ts';
import { ProjectMeasurement, ProjectSizes } from '../measurement.ts';
import { PROGRESS_TABLES_MAX, ReplayProgress, TableProgress } from '../project/job.ts';
import { FollowReport } from './follow.ts';
import { Id } from './operation.ts';
import { DrillReport } from './recovery-drill.ts';

const WorkProgress = z.strictObject({
  project_id: Id,
  job_id: Id,
  percent: z.int().min(0).max(99),
  /** Of a copy: those that are being copied first, then the largest. */
  tables: z.array(TableProgress).max(PROGRESS_TABLES_MAX).optional(),
  /** The progress of a recovery, while it replays the WAL. */
  replay: ReplayProgress.optional(),
});
export type WorkProgress = z.output<typeof WorkProgress>;

/**
 * Notifications from the agent to the edge: method → parameters. They have no reply, and a lost one is not
 * repeated, because the next one supersedes it.
 */
export const NOTIFICATIONS = {
  /** All branches of one project, measured together. */
  measurement: { params: ProjectMeasurement },
  /** All databases of a write-blocked project, as soon as they have shrunk. */
  sizes: { params: ProjectSizes },
  /** All blocks of one project: after each change, and once a minute while there is one. */
  blocks: { params: ProjectBlocks },
  /** A branch that follows a source: after each change, and once a minute while it follows. */
  follow: { params: FollowReport },
  /** The last drill of a project: after each, and every six hours. */
  drill: { params: DrillReport },
  /** How far the work for a job is: every two seconds, of work that takes longer. */
  progress: { params: WorkProgress },
  /** The host has changed without the edge, which reads its inventory again: every two seconds until then. */
  inventory_outdated: { params: z.strictObject({}) },
} as const;

export type Notification = keyof typeof NOTIFICATIONS;
