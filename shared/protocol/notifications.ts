import { ProjectBlocks } from '../block.ts';
import { ProjectMeasurement, ProjectSizes } from '../measurement.ts';

/**
 * Notifications from the agent to the edge: method → parameters. They have no reply, and a lost one is not repeated,
 * because the next one supersedes it.
 */
export const NOTIFICATIONS = {
  /** All branches of one project, measured together. */
  measurement: { params: ProjectMeasurement },
  /** All databases of a write-blocked project, as soon as they have shrunk. */
  sizes: { params: ProjectSizes },
  /** All blocks of one project: after each change, and once a minute while there is one. */
  blocks: { params: ProjectBlocks },
} as const;

export type Notification = keyof typeof NOTIFICATIONS;
