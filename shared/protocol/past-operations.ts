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
} as const;
