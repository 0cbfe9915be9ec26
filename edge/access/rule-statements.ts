import { type SQL, sql } from 'drizzle-orm';
import { NETWORK_RULES_MAX } from '../../shared/limits.ts';
import { type Database, insertAllIf, isOneOf, type Statement } from '../database/database.ts';
import { networkRules, projects } from '../database/schema.ts';
import { nextAccessRevision } from './access-revision.ts';
import type { NetworkRuleRow } from './network-rule-resource.ts';

/** Whether the project may have `count` more rules. */
export const hasRoom = (projectId: string, count = 1): SQL =>
  sql`(select count(*) from ${networkRules} where project_id = ${projectId}) + ${count} <= ${NETWORK_RULES_MAX}`;

/** Adds rules of one project under a new revision, if `condition` is true and the project has room for all of them. */
export function ruleStatements(db: Database, rules: readonly NetworkRuleRow[], condition: SQL): Statement[] {
  const [first] = rules;
  if (!first) return [];
  const { projectId } = first;
  const revision = sql`(select access_revision from ${projects} where id = ${projectId})`;
  return [
    insertAllIf(db, networkRules, rules, sql`${condition} and ${hasRoom(projectId, rules.length)}`),
    nextAccessRevision(db, projectId, sql`exists (select 1 from ${networkRules} where id = ${first.id})`),
    db
      .update(networkRules)
      .set({ revision })
      .where(
        isOneOf(
          networkRules.id,
          rules.map(({ id }) => id),
        ),
      ),
  ];
}
