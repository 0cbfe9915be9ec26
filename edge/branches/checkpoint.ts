import { and, desc, eq, inArray, isNull, or, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Checkpoint as CheckpointBody } from '../database/column-types.ts';
import type { Database } from '../database/database.ts';
import { projectBranches, type SnapshotRow, snapshots } from '../database/schema.ts';

export const Checkpoint = z
  .strictObject({
    checkpoint_id: z.uuid(),
    label: z.string().nullable().meta({ example: 'before adding prices' }),
    taken_at: z.iso.datetime(),
    number: z.int().positive().nullable().meta({
      description:
        'Its place among the checkpoints of the branch, from 1. Null: what the branch held before an undo or a reset.',
      example: 3,
    }),
  })
  .meta({ id: 'Checkpoint' });

/** The end of an undo. */
export const Undone = z
  .strictObject({
    restored: Checkpoint,
    safety_checkpoint_id: z.uuid().nullable().meta({
      description:
        'What the branch held before, for 24 hours: give it as `to` to take the undo back. Null: nothing that could be kept.',
    }),
  })
  .meta({ id: 'Undone' });

export const toCheckpoint = ({ id, kind, name, takenAt, number }: SnapshotRow): CheckpointBody => ({
  checkpoint_id: id,
  label: name,
  taken_at: takenAt.toISOString(),
  number: kind === 'checkpoint' ? number : null,
});

/** Those of a branch, also while they are made or dropped. */
export const checkpointsOf = (branchId: string | SQL) =>
  and(eq(snapshots.branchId, branchId), eq(snapshots.kind, 'checkpoint'));

/** Those that an undo can go back to. One with an end is being dropped. */
export const isKeptCheckpoint = (branchId: string | SQL) =>
  and(checkpointsOf(branchId), eq(snapshots.status, 'ready'), isNull(snapshots.expiresAt));

/** The checkpoints behind the present position of the branch. */
const behind = (branchId: string | SQL) =>
  and(
    isKeptCheckpoint(branchId),
    sql`${snapshots.number} < coalesce((select undone_to from ${projectBranches} where id = ${branchId}), 9e15)`,
  );

/** True if the checkpoint is the branch's n-th one back from its present position. */
export const isStepsBack = (id: string, branchId: string, steps: number): SQL =>
  sql`${id} = (select id from ${snapshots} where ${behind(branchId)} order by number desc limit 1 offset ${steps - 1})`;

/** The target of an undo: the n-th checkpoint back, or by its ID a checkpoint or what an undo has left. */
export const undoTarget = (
  db: Database,
  branchId: SQL,
  { to, steps }: { to?: string | undefined; steps: number },
) => {
  const among =
    to === undefined
      ? behind(branchId)
      : and(
          eq(snapshots.id, to),
          eq(snapshots.branchId, branchId),
          inArray(snapshots.kind, ['checkpoint', 'safety']),
          eq(snapshots.status, 'ready'),
          or(eq(snapshots.kind, 'safety'), isNull(snapshots.expiresAt)),
        );
  return db
    .select()
    .from(snapshots)
    .where(among)
    .orderBy(desc(snapshots.number))
    .limit(1)
    .offset(to === undefined ? steps - 1 : 0);
};
