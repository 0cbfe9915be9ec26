import { and, desc, eq, sql } from 'drizzle-orm';
import { z } from 'zod';
import { DRILL_OVERDUE_MS, DRILL_PROBLEMS, type DrillReport } from '../../shared/protocol/recovery-drill.ts';
import { auditEvent, inTenantOfProject, noActor } from '../audit/audit-event.ts';
import { type Database, inOneBatch, insertIf, isThere } from '../database/database.ts';
import { auditEvents } from '../database/schema.ts';
import type { ProjectView } from '../tenancy/project-access.ts';

/** Drills of recoveries, which a host runs by itself. The audit log keeps them: they are its evidence. */

const NAME = 'recovery.drilled';
/** A literal, as in the index `audit_drills`: a year of a project's events has 140,000 others. */
const isDrill = sql`${auditEvents.name} = ${sql.raw(`'${NAME}'`)}`;
/** A year of weekly drills. */
const LISTED_MAX = 52;

const Metadata = z.object({
  drilled_at: z.iso.datetime(),
  at: z.iso.datetime(),
  duration_ms: z.int(),
  tables: z.int(),
  rows: z.int(),
  problem: z.enum(DRILL_PROBLEMS).nullable(),
});

const RecoveryDrill = z
  .strictObject({
    id: z.uuid(),
    drilled_at: z.iso.datetime(),
    at: z.iso.datetime().meta({ description: 'The time to which `main` was recovered.' }),
    duration_ms: z.int(),
    tables: z.int().meta({ description: 'Tables that were compared with what they had at that time.' }),
    rows: z
      .int()
      .meta({ description: 'Rows that were compared. The number of all rows of a table was, too.' }),
    passed: z.boolean(),
    problem: z.enum(DRILL_PROBLEMS).nullable().meta({
      description:
        '`base_copy_missing`: the copy of the files from before the time is gone. `log_unreadable`: the log since then does not lead to the time. `content_differs`: the rows are others than at that time. `not_copied`: the database could not be copied. Null: the drill has passed.',
    }),
  })
  .meta({ id: 'RecoveryDrill' });

export const RecoveryDrills = z
  .strictObject({
    drills: z.array(RecoveryDrill).meta({ description: 'Newest first.' }),
    overdue: z.boolean().meta({
      description: 'No drill has passed for two weeks, although the database host keeps a past.',
    }),
  })
  .meta({ id: 'RecoveryDrills' });

/** Records the report of a host, which repeats it until there is another one. */
export async function recordDrill(db: Database, report: DrillReport): Promise<void> {
  const { project_id: projectId, drill_id: id, ...metadata } = report;
  const known = await db.select({ id: auditEvents.id }).from(auditEvents).where(eq(auditEvents.id, id));
  if (known.length > 0) return;
  const event = auditEvent(NAME, noActor(''), { id, projectId, metadata }, new Date());
  await inOneBatch(db, [
    insertIf(db, auditEvents, event, sql`not ${isThere(auditEvents, eq(auditEvents.id, id))}`),
    inTenantOfProject(db, projectId, [id]),
  ]);
}

export const drillsOf = (db: Database, projectId: string) =>
  db
    .select({ id: auditEvents.id, metadata: auditEvents.metadata })
    .from(auditEvents)
    .where(and(eq(auditEvents.projectId, projectId), isDrill))
    .orderBy(desc(auditEvents.createdAt))
    .limit(LISTED_MAX);

/** @param rows of `drillsOf` */
export function toDrills(
  { recoverableFrom, createdAt }: Pick<ProjectView, 'recoverableFrom' | 'createdAt'>,
  rows: readonly { id: string; metadata: unknown }[],
  now: Date,
): z.output<typeof RecoveryDrills> {
  const drills = rows.map(({ id, metadata }) => {
    const drill = Metadata.parse(metadata);
    return { id, ...drill, passed: drill.problem === null };
  });
  const proven = Date.parse(drills.find(({ passed }) => passed)?.drilled_at ?? createdAt.toISOString());
  return { drills, overdue: recoverableFrom !== null && now.getTime() - proven > DRILL_OVERDUE_MS };
}
