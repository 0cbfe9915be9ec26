import { and, eq } from 'drizzle-orm';
import { Hono } from 'hono';
import { z } from 'zod';
import { readCidr } from '../../shared/network/cidr.ts';
import { type AppEnv, actorOf, databaseOf } from '../app-env.ts';
import { allow } from '../authentication/permissions.ts';
import { networkRules } from '../database/schema.ts';
import { networkRuleRecord } from '../network-rules/network-rule-record.ts';
import { cutPage, keyset, PageQuery } from '../pagination.ts';
import { coordinatorOf } from '../projects/coordinator-stub.ts';
import { found, visibleProject } from '../projects/project-access.ts';
import { readBody, readId, readQuery } from '../requests.ts';
import { succeeded } from './outcomes.ts';

const Cidr = z
  .string()
  .max(64)
  .transform((text, context) => {
    const reading = readCidr(text.trim());
    if (reading.ok) return reading.cidr;
    context.addIssue({ code: 'custom', message: reading.message });
    return z.NEVER;
  });

const BranchId = z.uuid().toLowerCase();

const NewRule = z.strictObject({
  cidr: Cidr,
  description: z.string().max(200).nullable().default(null),
  branch_id: BranchId.nullable().default(null),
});

const RuleQuery = PageQuery.extend({ branch_id: BranchId.optional() });

/** Access to the databases of a project, under `/api/v1/projects/:project_id/network-rules`. */
export const networkRuleRoutes = new Hono<AppEnv>()
  .post('/', async (c) => {
    const reach = allow(c.var.principal, 'network_rules.change');
    const projectId = readId(c, 'project_id');
    const project = found(await visibleProject(databaseOf(c), c.var.principal, reach, projectId));
    const body = await readBody(c, NewRule);
    const actor = actorOf(c);
    const rule = {
      id: crypto.randomUUID(),
      projectId,
      branchId: body.branch_id,
      cidr: body.cidr,
      description: body.description,
      source: 'manual' as const,
      revision: 0,
      createdBy: actor.userId,
      tenantId: actor.tenantId,
      createdAt: new Date(),
    };
    const { applied } = succeeded(await coordinatorOf(c.env, projectId).addRule(rule, project.hostId, actor));
    return c.json(networkRuleRecord(rule, applied), 201);
  })

  .get('/', async (c) => {
    const reach = allow(c.var.principal, 'network_rules.read');
    const projectId = readId(c, 'project_id');
    const query = readQuery(c, RuleQuery);
    const db = databaseOf(c);
    const { orderBy, beyond } = keyset(networkRules, 'oldest_first', query);
    const ofBranch = query.branch_id && eq(networkRules.branchId, query.branch_id);
    const [projectRows, rows] = await db.batch([
      visibleProject(db, c.var.principal, reach, projectId),
      db
        .select()
        .from(networkRules)
        .where(and(eq(networkRules.projectId, projectId), ofBranch || undefined, beyond))
        .orderBy(...orderBy)
        .limit(query.limit + 1),
    ]);
    const { accessApplied } = found(projectRows);
    const { page, next_cursor } = cutPage(rows, query);
    const records = page.map((row) => networkRuleRecord(row, row.revision <= accessApplied));
    return c.json({ network_rules: records, next_cursor });
  })

  .delete('/:rule_id', async (c) => {
    const reach = allow(c.var.principal, 'network_rules.change');
    const projectId = readId(c, 'project_id');
    const ruleId = readId(c, 'rule_id');
    const project = found(await visibleProject(databaseOf(c), c.var.principal, reach, projectId));
    const coordinator = coordinatorOf(c.env, projectId);
    const { applied } = succeeded(
      await coordinator.removeRule(projectId, project.hostId, ruleId, actorOf(c)),
    );
    // The host is away: the rule is gone from the record, but its ports still let that network in.
    return applied ? c.body(null, 204) : c.json({ id: ruleId, status: 'pending' }, 202);
  });
