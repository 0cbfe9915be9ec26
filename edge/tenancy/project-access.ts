import { and, eq, exists, getTableColumns, ne, or, type SQL, sql } from 'drizzle-orm';
import type { BatchResponse } from 'drizzle-orm/batch';
import { type BranchStatus, COUNTED_STATUSES, USED_STATUSES } from '../../shared/branch/branch-status.ts';
import type { Failure } from '../../shared/failures.ts';
import type { Moment } from '../../shared/moment.ts';
import type { SyncState } from '../../shared/protocol/durability.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { BoundedMap } from '../bounded-map.ts';
import type { Actor, StoredBlock } from '../database/column-types.ts';
import type { Database, Statement } from '../database/database.ts';
import { KEPT_MS, moves } from '../database/move-schema.ts';
import { projectMembers } from '../database/people-schema.ts';
import {
  auditEvents,
  type BranchRow,
  hosts,
  jobs,
  type ProjectRow,
  projectBranches,
  projects,
} from '../database/schema.ts';
import type { Reach } from '../permissions.ts';

/** How the project is shared with the user, as a subquery of a query on projects. */
const shareOf = (db: Database, userId: string) =>
  db
    .select({ role: projectMembers.role })
    .from(projectMembers)
    .where(and(eq(projectMembers.projectId, projects.id), eq(projectMembers.userId, userId)));

/** Whether the user created the project or it is shared with them. */
export const isOwn = (db: Database, userId: string): SQL | undefined =>
  or(eq(projects.createdBy, userId), exists(shareOf(db, userId)));

/** The projects that a principal can see. All others appear not to exist. */
export const visible = (
  db: Database,
  { tenantId, userId, machine }: Principal,
  reach: Reach,
): SQL | undefined =>
  and(
    eq(projects.tenantId, tenantId),
    reach === 'own' ? isOwn(db, userId) : undefined,
    machine?.projectId ? eq(projects.id, machine.projectId) : undefined,
  );

/** Whether the principal may only see the project, because it is shared with them for viewing. */
const isViewOnly = (db: Database, { userId }: Principal, reach: Reach) =>
  reach === 'all'
    ? sql<number>`0`
    : sql<number>`${projects.createdBy} <> ${userId} and ${shareOf(db, userId)} = 'viewer'`;

/** The project's branches with these statuses, as the end of a query. */
const branchesIn = (statuses: readonly BranchStatus[]): SQL => sql`where project_id = ${projects.id}
  and status in (${sql.join(
    statuses.map((status) => sql`${status}`),
    sql`, `,
  )})`;

/** As the branch limit counts them. */
const countedBranches = branchesIn(COUNTED_STATUSES);
const branchCount = sql<number>`(select count(*) from ${projectBranches} ${countedBranches})`;
const leasedBranchCount = sql<number>`(select count(*) from ${projectBranches} ${countedBranches} and lease_seconds is not null)`;
/** The service deletes no protected branch. */
const nextSlotAt = sql`(select min(coalesce(min(lease_ends_at, deletes_at), lease_ends_at, deletes_at))
  from ${projectBranches} ${countedBranches} and not protected)`.mapWith((at: number | null) =>
  at === null ? null : new Date(at),
);

/** An expired branch has no sessions that could be blocked. */
const usedBranches = branchesIn(USED_STATUSES);
const blocks =
  sql`(select json_group_array(json(block.value)) from ${projectBranches}, json_each(blocks) as block ${usedBranches})`.mapWith(
    (blocks: string): StoredBlock[] => JSON.parse(blocks),
  );

/** That of `main`, the only branch that has one. */
const hold = sql<BranchRow['hold']>`(select max(hold) from ${projectBranches} ${usedBranches})`;

/** With a name of its own, because a batch on D1 returns only one of two columns with the same name. */
const hostName = sql<string>`${hosts.name}`.as('host_name');

/** When the project came to its host, rounded up; empty unless it has moved. */
const arrivedAt = sql`coalesce((select strftime('%Y-%m-%dT%H:%M:%S.000000Z', (${moves.keptUntil} - ${KEPT_MS}) / 1000 + 1, 'unixepoch')
  from ${moves} where ${moves.projectId} = ${projects.id}), '')`;

/** The earliest time to which its host can recover the project, as last reported; the project itself may be younger. */
const recoverableFrom =
  sql<Moment | null>`max(json_extract(${hosts.description}, '$.recoverable_from'), ${arrivedAt})`.as(
    'recoverable_from',
  );

/** Since when drills could prove its recoveries, on this host; null: it runs none. */
export const drillsSince = sql<
  string | null
>`max(json_extract(${hosts.description}, '$.drills_since'), ${arrivedAt})`.as('drills_since');

const pastHours = sql<number | null>`json_extract(${hosts.description}, '$.past_hours')`.as('past_hours');

/** Projects with everything that a response shows. */
export const projectViews = (db: Database) =>
  db
    .select({
      ...getTableColumns(projects),
      hostName,
      region: hosts.region,
      sync: hosts.sync,
      recoverableFrom,
      drillsSince,
      pastHours,
      branchCount,
      leasedBranchCount,
      nextSlotAt,
      blocks,
      hold,
    })
    .from(projects)
    .innerJoin(hosts, eq(hosts.id, projects.hostId));

interface Permission {
  principal: Principal;
  reach: Reach;
  isChange: boolean;
}

/**
 * Reads the project and the results of `queries` in one batch.
 * @returns null if the principal cannot see it
 *   or FORBIDDEN if the principal may see it and nothing more, and the action takes more
 */
export async function readProject<const Q extends readonly Statement[]>(
  db: Database,
  { principal, reach, isChange }: Permission,
  projectId: string,
  queries: Q,
): Promise<Result<[ProjectView, ...BatchResponse<Q>] | null, Failure>> {
  const theProject = and(eq(projects.id, projectId), visible(db, principal, reach));
  const [views, viewOnly, ...results] = await db.batch([
    projectViews(db).where(theProject),
    db
      .select({ id: projects.id })
      .from(projects)
      .where(and(theProject, isViewOnly(db, principal, reach))),
    ...queries,
  ]);
  const [project] = views as ProjectView[];
  if (!project) return ok(null);
  if (isChange && viewOnly.length > 0) {
    const fields = { required: 'project role operator' };
    return fail({ code: 'FORBIDDEN', fields, reason: 'shared for viewing' });
  }
  return ok([project, ...(results as BatchResponse<Q>)]);
}

/** One event an hour for each user and project, so that repeated requests cannot fill an audit log. */
const QUIET_MS = 3_600_000;
const REMEMBERED = 10_000;
const lastTimes = new BoundedMap<string, number>(REMEMBERED);

/** Whether this event did not occur within the last hour. Remembers it. */
function isNew(event: string, now: Date): boolean {
  if (now.getTime() - (lastTimes.get(event) ?? 0) < QUIET_MS) return false;
  lastTimes.set(event, now.getTime());
  return true;
}

/** Finds the project that an ID belongs to, if it is another tenant's. */
const FOREIGN = {
  project: (db: Database, id: string, tenantId: string) =>
    db
      .select({ projectId: projects.id, tenantId: projects.tenantId })
      .from(projects)
      .where(and(eq(projects.id, id), ne(projects.tenantId, tenantId))),
  job: (db: Database, id: string, tenantId: string) =>
    db
      .select({ projectId: jobs.projectId, tenantId: jobs.tenantId })
      .from(jobs)
      .where(and(eq(jobs.id, id), ne(jobs.tenantId, tenantId))),
};

/**
 * Audits a denied access to another tenant's project or job, in that tenant's log: in the actor's own log it
 * would reveal that the ID exists. Callers do not wait for it, because the response time would reveal it as
 * well.
 * @param method of the HTTP request
 */
export async function recordDeniedAccess(
  db: Database,
  actor: Actor,
  method: string,
  { kind, id }: { kind: keyof typeof FOREIGN; id: string },
): Promise<void> {
  const { tenantId, userId } = actor;
  const now = new Date();
  if (!isNew(`${userId} requested ${id}`, now)) return;
  const [foreign] = await FOREIGN[kind](db, id, tenantId);
  if (!foreign || !isNew(`${userId} was denied ${foreign.projectId}`, now)) return;
  // The other tenant gets the actor's ID and address, not the e-mail address.
  const deniedActor = { ...actor, email: null, tenantId: foreign.tenantId };
  const about = { projectId: foreign.projectId, metadata: { method } };
  await db.insert(auditEvents).values(auditEvent('access.denied', deniedActor, about, now));
}

/**
 * A project with its host's name, the number of its branches that count against the branch limit, how many of
 * them have a lease, when the service deletes the next one, and the blocks of its branches.
 */
export type ProjectView = ProjectRow & {
  hostName: string;
  region: string | null;
  sync: SyncState;
  recoverableFrom: Moment | null;
  drillsSince: string | null;
  /** For which its host keeps what was deleted; null: it keeps no past. */
  pastHours: number | null;
  branchCount: number;
  leasedBranchCount: number;
  nextSlotAt: Date | null;
  blocks: StoredBlock[];
  hold: BranchRow['hold'];
};
