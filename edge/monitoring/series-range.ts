import { z } from 'zod';
import { finestStep, type Range } from './metric-history.ts';

/** Points of one series in one answer: a day of minutes, and some. */
const POINTS_MAX = 1500;
const HOUR_MS = 3_600_000;
const STEP = { min: 60, max: 30 * 86_400 } as const;

const Moment = z.iso.datetime({ offset: true }).transform((text) => Date.parse(text));

/** The part of the query that says which points are wanted. */
export const SeriesRange = {
  start: Moment.optional().meta({
    description: 'First moment, ISO 8601; left out: one hour before `end`.',
    example: '2026-01-31T11:00:00Z',
  }),
  end: Moment.optional().meta({
    description: 'Last moment, ISO 8601; left out: now.',
    example: '2026-01-31T12:00:00Z',
  }),
  step: z.coerce
    .number()
    .int()
    .min(STEP.min)
    .max(STEP.max)
    .optional()
    .meta({
      description: `Seconds between points; left out: as fine as is kept. Minutes are kept for 24 hours, hours for 30 days, days for a year: a shorter step than is kept from \`start\` on becomes that. At most ${POINTS_MAX} points a metric.`,
      example: 60,
    }),
};

/** @returns why not, as `details` of VALIDATION_FAILED, when it makes no sense or too many points */
export function rangeOf(
  query: { start?: number | undefined; end?: number | undefined; step?: number | undefined },
  now: number,
): Range | { path: string; message: string } {
  const end = Math.min(query.end ?? now, now);
  const start = query.start ?? end - HOUR_MS;
  if (start > end) return { path: 'start', message: 'must be before end and not in the future' };
  const finest = finestStep(start, now);
  const step = Math.max((query.step ?? 0) * 1000, finest);
  const points = Math.floor((end - start) / step) + 1;
  if (points <= POINTS_MAX) return { start, end, step };
  return { path: 'step', message: `would give ${points} points; at most ${POINTS_MAX}` };
}
