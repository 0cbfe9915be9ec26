import { z } from 'zod';
import { finestStep, type Range } from './metric-history.ts';

/** Points per series in one response: a little more than one day at one point a minute. */
const POINTS_MAX = 1500;
/** The same for a response with all branches of a project. */
export const POINTS_OF_EACH_MAX = 200;
const HOUR_MS = 3_600_000;
const STEP = { min: 60, max: 30 * 86_400 } as const;

const Timestamp = z.iso.datetime({ offset: true }).transform((text) => Date.parse(text));

/** The query parameters that select the points of a series. */
export const SeriesRange = {
  start: Timestamp.optional().meta({
    description: 'Start of the range, ISO 8601. Default: one hour before `end`.',
    example: '2026-01-31T11:00:00Z',
  }),
  end: Timestamp.optional().meta({
    description: 'End of the range, ISO 8601. Default: now.',
    example: '2026-01-31T12:00:00Z',
  }),
  step: z.coerce
    .number()
    .int()
    .min(STEP.min)
    .max(STEP.max)
    .optional()
    .meta({
      description: `Seconds between points. Default: the finest resolution available. One point per minute is available for 24 hours, one per hour for 30 days and one per day for a year; a step shorter than the resolution available since \`start\` is rounded up to it. At most ${POINTS_MAX} points per metric are returned.`,
      example: 60,
    }),
};

/** @returns the range, or an entry for the `details` of VALIDATION_FAILED when the range is invalid or too long */
export function rangeOf(
  query: { start?: number | undefined; end?: number | undefined; step?: number | undefined },
  now: number,
  pointsMax = POINTS_MAX,
): Range | { path: string; message: string } {
  const end = Math.min(query.end ?? now, now);
  const start = query.start ?? end - HOUR_MS;
  if (start > end) return { path: 'start', message: 'Must be before end and not in the future.' };
  const finest = finestStep(start, now);
  const step = Math.max((query.step ?? 0) * 1000, finest);
  const points = Math.floor((end - start) / step) + 1;
  if (points <= pointsMax) return { start, end, step };
  return {
    path: 'step',
    message: `Too small: ${points} points would result, at most ${pointsMax} are allowed.`,
  };
}
