import { z } from 'zod';
import { SPARES_WAITS, type SparesWait } from './spares-wait.ts';

/**
 * `safety`: what a branch held before a reset. `masked`: made for branches with masked data. `checkpoint`: what
 * an undo of its branch goes back to.
 */
export const SNAPSHOT_KINDS = ['manual', 'schedule', 'safety', 'masked', 'checkpoint'] as const;

/**
 * Those that are no snapshots to users. `deleted`: the database of a deleted branch, which is kept for a while. `recovered`: a
 * branch at an earlier time, for the job that clones it.
 */
export const KEPT_KINDS = [...SNAPSHOT_KINDS, 'deleted', 'recovered'] as const;
export type KeptKind = (typeof KEPT_KINDS)[number];

/** How long the state before a reset is kept. */
export const SAFETY_SECONDS = 86_400;

/** Checkpoints that are kept, of a branch and of a project; the oldest is deleted first. */
export const CHECKPOINTS_OF_BRANCH = 20;
export const CHECKPOINTS_OF_PROJECT = 100;

/** Seconds between two snapshots, by the spelling in a schedule. */
const SCHEDULE_SECONDS = { '1h': 3_600, '6h': 21_600, '1d': 86_400 } as const;

export const SnapshotSchedule = z
  .strictObject({
    every: z.enum(Object.keys(SCHEDULE_SECONDS) as (keyof typeof SCHEDULE_SECONDS)[]).meta({ example: '6h' }),
    keep: z
      .int()
      .min(1)
      .max(30)
      .meta({ description: 'Scheduled snapshots that are kept; the oldest is deleted first.', example: 7 }),
    masked: z.boolean().optional().meta({
      description:
        'Their values are replaced by the masking policy, and branches with masked data are clones of the newest one.',
      example: false,
    }),
  })
  .meta({ description: 'Takes snapshots of `main`, unless nothing has changed since the last one.' });
export type SnapshotSchedule = z.output<typeof SnapshotSchedule>;

/** When the next snapshot of the schedule is due. */
export const nextSnapshotAt = ({ every }: SnapshotSchedule, from: Date): Date =>
  new Date(from.getTime() + SCHEDULE_SECONDS[every] * 1000);

/** How a branch gets its database: a clone, or one that was ready. */
export const CREATED_BY = ['clone', 'spare'] as const;
export type CreatedBy = (typeof CREATED_BY)[number];

/** Clones of a snapshot that are kept ready for its next branches, at most. */
export const SPARES_MAX = 32;
/** As many are made without being asked for. */
export const SPARES_AUTOMATIC_MAX = 8;
export const AUTOMATIC = 'auto';

export const Spares = z.union([z.literal(AUTOMATIC), z.int().min(0).max(SPARES_MAX)]).meta({
  description:
    'Clones that the host keeps ready for the next branches of a snapshot, at most 32 in a project. `auto`: as many as were taken in the last minute, at most 8, and none for a snapshot that was unused for ten minutes.',
  example: AUTOMATIC,
});
export type Spares = z.output<typeof Spares>;

export const SparesState = z
  .strictObject({
    wanted: z.int().nonnegative(),
    ready: z.int().nonnegative(),
    waiting_for: z
      .enum(Object.keys(SPARES_WAITS) as SparesWait[])
      .nullable()
      .meta({
        description: Object.entries(SPARES_WAITS)
          .map(([wait, text]) => `\`${wait}\`: ${text}`)
          .join(' '),
        example: null,
      }),
  })
  .meta({ example: { wanted: 32, ready: 32, waiting_for: null } });
export type SparesState = z.output<typeof SparesState>;

/** As records have it: null is automatic. */
export const storedSpares = (spares: Spares): number | null => (spares === AUTOMATIC ? null : spares);
