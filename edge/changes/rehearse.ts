import { and, eq, sql } from 'drizzle-orm';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { auditEvent, inTenantOfProject } from '../audit/audit-event.ts';
import { BUSY_WAIT_MS } from '../branches/clone-source.ts';
import {
  COMPARING,
  DISCARDING,
  dropSource,
  forgetSource,
  isMasked,
  makeSource,
  patienceOf,
} from '../branches/prepared-source.ts';
import { type ChangeRow, changes } from '../database/change-schema.ts';
import { insertIf } from '../database/database.ts';
import { auditEvents, type BranchRow, projectBranches } from '../database/schema.ts';
import { saga } from '../jobs/saga.ts';
import { changeState } from './states.ts';

interface Rehearsing {
  change: ChangeRow;
  branch: BranchRow;
  rehearsed: MethodResult<'change.rehearse'> | null;
}

/** Runs the plan on a clone of `main`, or of a masked snapshot of it, and keeps the report. */
export const rehearseChangeJob = saga<'change.rehearse', Rehearsing>({
  steps: [
    [{ name: 'mask', when: isMasked, run: makeSource }],
    [
      COMPARING,
      {
        name: 'rehearse',
        run: async ({ job, callHost }, subject) => {
          const { prepared } = job.input;
          const { databaseName: database, id: branch_id } = subject.branch;
          subject.rehearsed = await callHost('change.rehearse', {
            project_id: job.projectId,
            job_id: job.id,
            branch_id,
            database,
            source: prepared ? snapshotDatabaseName(prepared.snapshotId) : database,
            busy_wait: BUSY_WAIT_MS,
            steps: subject.change.plan.steps,
          });
        },
      },
    ],
    [DISCARDING],
  ],
  patience: patienceOf,
  load: async ({ db, job }) => {
    const [[change], [branch]] = await db.batch([
      db
        .select()
        .from(changes)
        .where(and(eq(changes.id, job.input.changeId), eq(changes.jobId, job.id))),
      db
        .select()
        .from(projectBranches)
        .where(and(eq(projectBranches.id, job.branchId), eq(projectBranches.status, 'active'))),
    ]);
    return change && branch ? { change, branch, rehearsed: null } : null;
  },
  complete: ({ db, job }, { change, rehearsed }, now) => {
    if (!rehearsed) return [];
    const { schema_before, ...result } = rehearsed;
    const { error, report } = result;
    const stale = schema_before !== change.plan.schema;
    const ran = error === null && !stale;
    const theJob = and(
      eq(changes.id, change.id),
      eq(changes.jobId, job.id),
      eq(changes.digest, change.digest),
    );
    const metadata = {
      change_id: change.id,
      digest: change.digest,
      verdict: error ? 'failed' : report.verdict,
      ...(stale && { stale }),
    };
    const about = { id: job.id, projectId: job.projectId, branchId: job.branchId, metadata };
    return [
      insertIf(db, auditEvents, auditEvent('change.rehearsed', job.input.actor, about, now), sql`true`),
      inTenantOfProject(db, job.projectId, [job.id]),
      changeState(db, ran ? 'rehearse' : 'reject', theJob, {
        rehearsal: { ...result, data: job.input.prepared?.data ?? 'full', at: now.toISOString() },
        stale,
        updatedAt: now,
      }),
      ...forgetSource({ db, job }),
    ];
  },
  undo: {
    run: dropSource,
    record: ({ db, job }) => forgetSource({ db, job }),
  },
});
