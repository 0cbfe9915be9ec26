import { eq, type SQL, sql } from 'drizzle-orm';
import { nextAccessRevision } from '../access/access-revision.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { networkRules, projects } from '../database/schema.ts';
import type { NetworkRuleRow } from './network-rule-record.ts';

/** Adds a rule under a new revision of its own, when `condition` holds. */
export const addRule = (db: Database, rule: NetworkRuleRow, condition: SQL): Statement[] => [
  insertIf(db, networkRules, rule, condition),
  nextAccessRevision(db, rule.projectId, sql`exists (select 1 from ${networkRules} where id = ${rule.id})`),
  db
    .update(networkRules)
    .set({ revision: sql`(select access_revision from ${projects} where id = ${rule.projectId})` })
    .where(eq(networkRules.id, rule.id)),
];
