import { and, eq, inArray, type SQL, sql } from 'drizzle-orm';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { type ResetKind, resetSaga, type UndoneChange } from '../branches/reset-branch.ts';
import { type ChangeRow, changes } from '../database/change-schema.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { auditEvents } from '../database/schema.ts';
import type { SagaContext } from '../jobs/saga.ts';
import { AT_WORK, allows, changeState } from './states.ts';

/** The undo of a change: a reset of `main` to the snapshot that was taken before its first statement. */

/** Requirements and first statements of a reset of `main` that undoes a change. */
export const undoOf = (db: Database, { id, projectId }: ChangeRow, now: Date): UndoneChange => ({
  id,
  require: [
    [
      sql`not ${isThere(changes, and(eq(changes.projectId, projectId), inArray(changes.state, AT_WORK)))}`,
      'PROJECT_BUSY',
    ],
    allows(id, 'undo'),
  ],
  begin: (isWritten, jobId) => [
    changeState(db, 'undo', and(eq(changes.id, id), isWritten), { jobId, updatedAt: now }),
  ],
});

const ofJob = ({ job }: SagaContext<ResetKind>): SQL | undefined =>
  and(eq(changes.jobId, job.id), eq(changes.state, 'undoing'));

export const undoChangeJob = resetSaga({
  completed: (context, now) => {
    const { db, job } = context;
    if (!('changeId' in job.input)) return [];
    // The reset has an event of its own, with the ID of the job.
    const id = crypto.randomUUID();
    const { changeId: change_id, snapshotId: snapshot_id } = job.input;
    const about = {
      id,
      projectId: job.projectId,
      branchId: job.branchId,
      metadata: { change_id, snapshot_id },
    };
    return [
      insertIf(
        db,
        auditEvents,
        auditEvent('change.undone', job.input.actor, about, now),
        isThere(changes, ofJob(context)),
      ),
      inTenantOfProject(db, job.projectId, [id]),
      changeState(db, 'undone', ofJob(context), { updatedAt: now }),
    ];
  },
  failed: (context, now) => [changeState(context.db, 'keep', ofJob(context), { updatedAt: now })],
});
