import { ProjectMeasurement } from '../measurement.ts';

/**
 * What the agent tells the edge unasked: method → parameters. Nobody answers, and what is lost is not sent again:
 * the next one tells more.
 */
export const NOTIFICATIONS = {
  /** All branches of one project, measured together. */
  measurement: { params: ProjectMeasurement },
} as const;

export type Notification = keyof typeof NOTIFICATIONS;
