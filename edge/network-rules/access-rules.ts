import { and, eq, type SQL, sql } from 'drizzle-orm';
import type { Params } from '../../shared/protocol/operations.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { networkRules, projects } from '../database/schema.ts';
import type { CallHost } from '../host-link/host-caller.ts';
import type { NetworkRuleRow } from './network-rule-record.ts';

/** All network rules of one project with their revision, as the host takes them. */
export type AccessRules = Params<'access.apply'>['access'];

export const accessRules = (project: { accessRevision: number }, rules: NetworkRuleRow[]): AccessRules => ({
  revision: project.accessRevision,
  rules: rules.map(({ branchId, cidr }) => ({ branch_id: branchId, cidr })),
});

/** A change of rules comes with a new revision, so that the host can tell old from new. */
export const nextAccessRevision = (db: Database, projectId: string, condition: SQL) =>
  db
    .update(projects)
    .set({ accessRevision: sql`access_revision + 1` })
    .where(and(eq(projects.id, projectId), condition));

/** Adds a rule under a new revision of its own, when `condition` holds. */
export const addRule = (db: Database, rule: NetworkRuleRow, condition: SQL): Statement[] => [
  insertIf(db, networkRules, rule, condition),
  nextAccessRevision(db, rule.projectId, sql`exists (select 1 from ${networkRules} where id = ${rule.id})`),
  db
    .update(networkRules)
    .set({ revision: sql`(select access_revision from ${projects} where id = ${rule.projectId})` })
    .where(eq(networkRules.id, rule.id)),
];

/** Notes that both ports obey this revision. */
export const confirmAccess = (db: Database, projectId: string, revision: number) =>
  db
    .update(projects)
    .set({ accessApplied: sql`max(access_applied, ${revision})` })
    .where(eq(projects.id, projectId));

/** The rules as they are wanted now, or null when the host is known to obey them. */
async function wantedAccess(db: Database, projectId: string): Promise<AccessRules | null> {
  const [projectRows, rules] = await db.batch([
    db.select().from(projects).where(eq(projects.id, projectId)),
    db.select().from(networkRules).where(eq(networkRules.projectId, projectId)),
  ]);
  const [project] = projectRows;
  if (!project || project.accessApplied >= project.accessRevision) return null;
  return accessRules(project, rules);
}

/** Makes both ports obey the rules as they are wanted now. @throws HostCallError */
export async function applyAccess(db: Database, callHost: CallHost, projectId: string): Promise<void> {
  const access = await wantedAccess(db, projectId);
  if (!access) return;
  await callHost('access.apply', { project_id: projectId, access });
  await confirmAccess(db, projectId, access.revision);
}
