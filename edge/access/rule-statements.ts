import { eq, type SQL, sql } from 'drizzle-orm';
import { NETWORK_RULES_MAX } from '../../shared/limits.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { networkRules, projects } from '../database/schema.ts';
import { nextAccessRevision } from './access-revision.ts';
import type { NetworkRuleRow } from './network-rule-resource.ts';

/** Whether the project is below its rule limit. */
export const hasRoom = (projectId: string): SQL =>
  sql`(select count(*) from ${networkRules} where project_id = ${projectId}) < ${NETWORK_RULES_MAX}`;

/** Adds a rule under a new revision, if `condition` is true and the project is below its rule limit. */
export const ruleStatements = (db: Database, rule: NetworkRuleRow, condition: SQL): Statement[] => [
  insertIf(db, networkRules, rule, sql`${condition} and ${hasRoom(rule.projectId)}`),
  nextAccessRevision(db, rule.projectId, sql`exists (select 1 from ${networkRules} where id = ${rule.id})`),
  db
    .update(networkRules)
    .set({ revision: sql`(select access_revision from ${projects} where id = ${rule.projectId})` })
    .where(eq(networkRules.id, rule.id)),
];
