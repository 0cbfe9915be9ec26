import { and, desc, eq, isNotNull, lt, or, sql } from 'drizzle-orm';
import { z } from 'zod';
import { DRILL_PROBLEMS } from '../../shared/drill-problems.ts';
import { DRILL_OVERDUE_MS, DrillProblem, type DrillReport } from '../../shared/protocol/recovery-drill.ts';
import { auditEvent, inTenantOfProject, noActor } from '../audit/audit-event.ts';
import {
  type Database,
  type DatabaseBinding,
  inOneBatch,
  insertIf,
  isThere,
  openDatabase,
} from '../database/database.ts';
import { auditEvents, hosts, projects, users } from '../database/schema.ts';
import { logEvent } from '../log.ts';
import { type Mail, plainMail, sendsMail } from '../mail/mail.ts';
import { readSettings } from '../settings.ts';
import { drillsSince, type ProjectView } from '../tenancy/project-access.ts';

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
  problem: DrillProblem.nullable(),
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
    problem: DrillProblem.nullable().meta({
      description:
        '`base_copy_missing`: the copy of the files from before the time is gone. `log_unreadable`: the log since then does not lead to the time. `content_differs`: the rows are others than at that time. `not_copied`: the database could not be copied. Null: the drill has passed.',
    }),
  })
  .meta({ id: 'RecoveryDrill' });

export const RecoveryDrills = z
  .strictObject({
    drills: z.array(RecoveryDrill).meta({ description: 'Newest first.' }),
    overdue: z.boolean().meta({
      description: 'No drill has passed for two weeks, although the database host runs drills.',
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
  project: DrilledProject,
  rows: readonly { id: string; metadata: unknown }[],
  now: Date,
): z.output<typeof RecoveryDrills> {
  const drills = rows.map(({ id, metadata }) => {
    const drill = Metadata.parse(metadata);
    return { id, ...drill, passed: drill.problem === null };
  });
  const passed = drills.find(({ passed }) => passed)?.drilled_at ?? null;
  return { drills, overdue: isOverdue(project, passed, now) };
}

type DrilledProject = Pick<ProjectView, 'drillsSince' | 'createdAt'>;

/** @param passed time of the last drill that has passed */
function isOverdue({ drillsSince, createdAt }: DrilledProject, passed: string | null, now: Date): boolean {
  if (drillsSince === null) return false;
  const times = [createdAt.getTime(), Date.parse(drillsSince), Date.parse(passed ?? drillsSince)];
  return now.getTime() - Math.max(...times) > DRILL_OVERDUE_MS;
}

/** Projects of one call: a Worker has a bound for its subrequests. */
const MAILED_MAX = 500;

/** A column of the newest drill of a project, of those that fulfil the condition. */
const ofNewest = (column: string, condition = 'true') =>
  sql<string | null>`(select ${sql.raw(column)} from audit_events where project_id = ${projects.id}
    and name = ${sql.raw(`'${NAME}'`)} and ${sql.raw(condition)} order by created_at desc limit 1)`;
const PROBLEM = "json_extract(metadata, '$.problem')";

/**
 * Mails to the creator of each project, and to `ALERT_EMAIL`, that its last drill has failed or that drills are overdue. Each
 * failed drill and each overdue time is mailed once.
 * @param send sends mails of a project; an occasion once
 * @param projectId of one project; left out: of all
 */
export async function mailAboutDrills(
  env: DatabaseBinding,
  send: (projectId: string, mails: Mail[], occasion: string) => Promise<void>,
  now: Date,
  projectId?: string,
): Promise<void> {
  const settings = readSettings(env);
  if (!sendsMail(settings)) return;
  const overdueBefore = new Date(now.getTime() - DRILL_OVERDUE_MS);
  const passedAt = ofNewest("json_extract(metadata, '$.drilled_at')", `${PROBLEM} is null`);
  const problem = ofNewest(PROBLEM);
  const isUnproven = and(
    lt(projects.createdAt, overdueBefore),
    ...[drillsSince.getSQL(), passedAt].map(
      (time) => sql`coalesce(${time}, '') < ${overdueBefore.toISOString()}`,
    ),
  );
  const found = await openDatabase(env.DB)
    .select({
      id: projects.id,
      name: projects.name,
      createdAt: projects.createdAt,
      drillsSince,
      email: users.email,
      drillId: ofNewest('id').as('drill_id'),
      problem: problem.as('problem'),
      passedAt: passedAt.as('passed_at'),
    })
    .from(projects)
    .innerJoin(hosts, eq(hosts.id, projects.hostId))
    .leftJoin(users, and(eq(users.id, projects.createdBy), eq(users.tenantId, projects.tenantId)))
    .where(
      and(
        eq(projects.status, 'active'),
        projectId === undefined ? undefined : eq(projects.id, projectId),
        sql`${drillsSince.getSQL()} is not null`,
        or(isNotNull(problem), isUnproven),
      ),
    )
    .limit(MAILED_MAX);
  for (const project of found) {
    const failed = project.problem === null ? null : DRILL_PROBLEMS[DrillProblem.parse(project.problem)];
    const isLate = isOverdue(project, project.passedAt, now);
    const addresses = new Set([project.email, settings.ALERT_EMAIL].filter((one) => typeof one === 'string'));
    const mails = [...addresses].map((to) => drillMail(to, project, failed, isLate));
    const occasion = `drill ${failed === null ? '' : project.drillId} ${isLate ? project.passedAt : ''}`;
    await send(project.id, mails, occasion).catch((error: unknown) =>
      logEvent('drill.not_mailed', { project_id: project.id, reason: String(error) }),
    );
  }
}

const drillMail = (
  to: string,
  { id, name }: { id: string; name: string },
  failed: string | null,
  isLate: boolean,
): Mail =>
  plainMail(to, `Recoveries of ${name} are not proven`, [
    ...(failed === null
      ? []
      : [
          `The last drill recovered the main branch of project "${name}" to an earlier time, and failed. ${failed}`,
        ]),
    ...(isLate ? [`No drill of project "${name}" has passed for two weeks.`] : []),
    'A recovery of yours can fail too. Take snapshots before risky changes until a drill has passed. The page Recoveries of the console lists the drills. On the database host, branchgate-agent doctor says what is wrong.',
    `Project ${id}.`,
  ]);
