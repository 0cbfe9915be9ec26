import { z } from 'zod';
import { COPY_JOBS } from '../limits.ts';
import { Moment } from '../moment.ts';
import { Id, operation } from './operation.ts';
import { SourceFinding } from './transfer-operations.ts';

/** Operations on the past of a host: its base copies, and the WAL since them. */

const Bytes = z.int().nonnegative();

export const PAST_OPERATIONS = {
  'past.recover': operation({
    summary:
      'Recover the database of a branch as it was at some time, as a snapshot to which nobody can connect',
    params: z.strictObject({
      job_id: Id,
      project_id: Id,
      branch_id: Id,
      snapshot_id: Id,
      /** Every commit up to then is in, and no later one. */
      at: Moment,
      /** What the storage quota of the project has left. */
      room_bytes: Bytes,
      jobs: z.int().min(1).max(COPY_JOBS.max),
      /** Recovers the open probe of this bisection, which is at the same time. */
      bisection_id: Id.optional(),
    }),
    result: z.strictObject({
      /** Null for the findings, or for a time that cannot be recovered. */
      recovered: z.strictObject({ size_bytes: Bytes }).nullable(),
      /** The times that can be recovered, if this one cannot; nulls: none. */
      window: z.strictObject({ from: Moment.nullable(), until: Moment.nullable() }),
      findings: z.array(SourceFinding),
    }),
    deadline: 900_000,
  }),

  'bisect.start': operation({
    summary: 'Begin to look for the commit after which something is wrong in a branch',
    params: z.strictObject({
      bisection_id: Id,
      project_id: Id,
      branch_id: Id,
      good: Moment,
      bad: Moment,
    }),
    /** The host forgets the bisection then. */
    result: z.strictObject({ ends_at: z.iso.datetime() }),
    deadline: 15_000,
  }),

  'bisect.step': operation({
    summary: 'Say whether the last probe of a bisection is good, and get the next one, or the commit',
    params: z.strictObject({
      bisection_id: Id,
      project_id: Id,
      /** `skip`: the probe cannot be judged. Null: the same probe again. */
      verdict: z.enum(['good', 'bad', 'skip']).nullable(),
    }),
    result: z.strictObject({
      /** Null: the bisection has ended. */
      step: z
        .strictObject({
          branch_id: Id,
          /** The last time that was good. */
          good: Moment,
          /** The first bad commit is at one of these times. */
          from: Moment,
          until: Moment,
          /** The time to be tried next; null: the commit is found, or all times are skipped. */
          probe: Moment.nullable(),
          /** Null: not found. */
          first_bad: Moment.nullable(),
        })
        .nullable(),
    }),
    deadline: 15_000,
  }),

  'bisect.end': operation({
    summary: 'Forget a bisection, with its copy',
    params: z.strictObject({ bisection_id: Id, project_id: Id }),
    result: z.strictObject({ ended: z.boolean() }),
    deadline: 60_000,
  }),
} as const;
