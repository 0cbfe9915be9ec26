import { and, asc, eq, inArray, lte, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { NETWORK_RULES_MAX } from '../../shared/limits.ts';
import { isNetworkName, NETWORK_NAMES, RANGES_OF_LIST } from '../../shared/named-networks.ts';
import { fail, type Result } from '../../shared/result.ts';
import type { RuleVia } from '../../shared/rule-via.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import type { Actor } from '../database/column-types.ts';
import { inActiveProject } from '../database/conditions.ts';
import {
  type Database,
  inOneBatch,
  insertAllIf,
  insertIf,
  isOneOf,
  isThere,
  type Statement,
} from '../database/database.ts';
import { guardedWrite, type Requirement } from '../database/guarded-write.ts';
import {
  auditEvents,
  type NetworkRuleRow,
  networkRules,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { type KeyUse, writeUnderKey } from '../idempotency/idempotency-key.ts';
import { missing } from '../missing.ts';
import { toNetworkRuleResponse } from './network-rule.ts';
import { nextAccessRevision } from './send-access.ts';

/** What a rule counts: one, or the longest list of the network that it names. */
const weightOf = (cidr: string): number => (isNetworkName(cidr) ? RANGES_OF_LIST[cidr].most : 1);

const weight = sql`case cidr ${sql.join(
  NETWORK_NAMES.map((name) => sql`when ${name} then ${weightOf(name)}`),
  sql` `,
)} else 1 end`;

/** Whether the project may have these rules too. */
function hasRoom(projectId: string, rules: readonly Pick<NetworkRuleRow, 'cidr'>[]): SQL {
  const more = rules.reduce((sum, { cidr }) => sum + weightOf(cidr), 0);
  return sql`(select coalesce(sum(${weight}), 0) from ${networkRules} where project_id = ${projectId}) + ${more} <= ${NETWORK_RULES_MAX}`;
}

/** The project may have these rules too. */
export const hasRoomFor = (
  projectId: string,
  rules: readonly Pick<NetworkRuleRow, 'cidr'>[],
): Requirement => [
  hasRoom(projectId, rules),
  { code: 'RULE_LIMIT_REACHED', fields: { limit: NETWORK_RULES_MAX } },
];

/**
 * Adds rules of one project under a new revision, if `condition` is true and the project has room for all of
 * them.
 */
export function ruleStatements(db: Database, rules: readonly NetworkRuleRow[], condition: SQL): Statement[] {
  const [first] = rules;
  if (!first) return [];
  const { projectId } = first;
  const revision = sql`(select access_revision from ${projects} where id = ${projectId})`;
  return [
    insertAllIf(db, networkRules, rules, sql`${condition} and ${hasRoom(projectId, rules)}`),
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

/** @param applied the rule is known to be in effect on both ports */
export const ruleResponse = (rule: NetworkRuleRow, applied: boolean) => ({
  status: 201,
  body: toNetworkRuleResponse(rule, applied),
});

/** Stores a new rule, and the response for a repeated request with the same key. */
export async function insertRule(
  db: Database,
  rule: NetworkRuleRow,
  actor: Actor,
  keyUse: KeyUse | null,
): Promise<Result<unknown, Failure>> {
  const { id, projectId, branchId, cidr, via, createdAt } = rule;
  const { metadata, ...about } = aboutRule(rule);
  const details = { ...metadata, via, ...(rule.expiresAt && { expires_at: rule.expiresAt.toISOString() }) };
  const event = auditEvent('network_rule.created', actor, { ...about, metadata: details }, createdAt);
  const isBranch = and(
    eq(projectBranches.id, branchId ?? ''),
    eq(projectBranches.projectId, projectId),
    inArray(projectBranches.status, ['creating', 'active', 'expired']),
  );
  const same = and(
    eq(networkRules.projectId, projectId),
    sql`${networkRules.branchId} is ${branchId}`,
    eq(networkRules.cidr, cidr),
  );
  const sameId = sql`(select id from ${networkRules} where ${same})`;
  const sameVia = sql`(select via from ${networkRules} where ${same})`;
  const response = ruleResponse(rule, false);
  return writeUnderKey(
    db,
    { use: keyUse, subjectId: id, now: createdAt, response },
    {
      decides: [auditEvents, event],
      require: [
        ...inActiveProject(projectId, rule.tenantId),
        [branchId === null ? sql`true` : isThere(projectBranches, isBranch), missing('branch')],
        hasRoomFor(projectId, [rule]),
        [sql`${sameId} is null`, { code: 'RULE_EXISTS', fields: { rule_id: sameId, via: sameVia } }],
      ],
      rest: (isWritten) => ruleStatements(db, [rule], isWritten),
    },
  );
}

/** A rule, as a change of its tenant names it. */
interface RuleReference {
  projectId: string;
  ruleId: string;
}

const referenced = ({ projectId, ruleId }: RuleReference, { tenantId }: Actor) =>
  and(
    eq(networkRules.id, ruleId),
    eq(networkRules.projectId, projectId),
    eq(networkRules.tenantId, tenantId),
  );

const aboutRule = ({ id, projectId, branchId, cidr }: NetworkRuleRow) => ({
  projectId,
  ...(branchId && { branchId }),
  metadata: { rule_id: id, cidr },
});

/** Moves the end of a rule, or changes what the rule opens. */
export const storeRuleChange =
  (change: { expiresAt?: Date | null; via?: RuleVia }) =>
  async (
    db: Database,
    reference: RuleReference,
    actor: Actor,
    now: Date,
  ): Promise<Result<unknown, Failure>> => {
    const theRule = referenced(reference, actor);
    const [rule] = await db.select().from(networkRules).where(theRule);
    if (!rule) return fail({ code: 'NOT_FOUND' });
    const { metadata, ...about } = aboutRule(rule);
    const { expiresAt, via } = change;
    const details = {
      ...metadata,
      ...(expiresAt !== undefined && { expires_at: expiresAt?.toISOString() ?? null }),
      ...(via && { via }),
    };
    const event = auditEvent('network_rule.changed', actor, { ...about, metadata: details }, now);
    return guardedWrite(db, {
      decides: [auditEvents, event],
      require: [[isThere(networkRules, theRule), 'NOT_FOUND']],
      rest: (isWritten) => {
        const ofRule = db.update(networkRules);
        if (via === undefined || via === rule.via) return [ofRule.set(change).where(and(theRule, isWritten))];
        const revision = sql`(select access_revision from ${projects} where id = ${reference.projectId})`;
        return [
          nextAccessRevision(db, reference.projectId, isWritten),
          ofRule.set({ ...change, revision }).where(and(theRule, isWritten)),
        ];
      },
    });
  };

/** Deletes a rule from the records. */
export async function deleteRule(
  db: Database,
  reference: RuleReference,
  actor: Actor,
  now: Date,
): Promise<Result<unknown, Failure>> {
  const theRule = referenced(reference, actor);
  const [rule] = await db.select().from(networkRules).where(theRule);
  if (!rule) return fail({ code: 'NOT_FOUND' });
  const event = auditEvent('network_rule.deleted', actor, aboutRule(rule), now);
  return guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(networkRules, theRule), 'NOT_FOUND']],
    rest: (isWritten) => [
      nextAccessRevision(db, reference.projectId, isWritten),
      db.delete(networkRules).where(and(theRule, isWritten)),
    ],
  });
}

/** Rules that end in one batch, each with an audit event. The next alarm ends the others. */
const AT_MOST = 50;

/**
 * Removes rules of the project whose end has come, with their audit events, in one batch that also changes
 * the access.
 */
export async function expireRules(db: Database, projectId: string, now: Date): Promise<void> {
  const rules = await db
    .select()
    .from(networkRules)
    .where(and(eq(networkRules.projectId, projectId), lte(networkRules.expiresAt, now)))
    .orderBy(asc(networkRules.expiresAt))
    .limit(AT_MOST);
  if (rules.length === 0) return;
  const ids = rules.map(({ id }) => id);
  // One that was extended meanwhile stays.
  const due = and(inArray(networkRules.id, ids), lte(networkRules.expiresAt, now));
  await inOneBatch(db, [
    ...rules.map(({ id, branchId, tenantId, cidr, expiresAt }) => {
      const metadata = { rule_id: id, cidr, expires_at: expiresAt?.toISOString() };
      const about = { projectId, ...(branchId && { branchId }), metadata };
      const event = auditEvent('network_rule.expired', noActor(tenantId), about, now);
      const isDue = sql`exists (select 1 from ${networkRules} where ${and(due, eq(networkRules.id, id))})`;
      return insertIf(db, auditEvents, event, isDue);
    }),
    nextAccessRevision(db, projectId, sql`exists (select 1 from ${networkRules} where ${due})`),
    db.delete(networkRules).where(due),
  ]);
}

/** When the next rule of the project ends, in Unix milliseconds; infinite if none will. */
export async function nextRuleEnd(db: Database, projectId: string): Promise<number> {
  const [found] = await db
    .select({ end: sql<number | null>`min(${networkRules.expiresAt})` })
    .from(networkRules)
    .where(eq(networkRules.projectId, projectId));
  return found?.end ?? Number.POSITIVE_INFINITY;
}

export interface RuleAddition {
  rule: NetworkRuleRow;
  actor: Actor;
  keyUse: KeyUse | null;
}

export interface RuleEdit {
  projectId: string;
  ruleId: string;
  actor: Actor;
  /** `remove` ends the rule. An `expiresAt` of null: the rule stays. */
  change: 'remove' | { expiresAt?: Date | null; via?: RuleVia };
}

/** `applied`: the change is already in effect on both ports. */
export interface RuleChange {
  applied: boolean;
}
