import { eq, sql } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { insertRule, ruleStatements } from '../../../edge/access/change-rules.ts';
import { inOneBatch } from '../../../edge/database/database.ts';
import { networkRules, projects } from '../../../edge/database/schema.ts';
import { NETWORK_RULES_MAX } from '../../../shared/limits.ts';
import { ACTOR, ruleRow, startRecords } from '../../support/records/records.ts';

const { binding, db } = await startRecords();

const keyUse = { tenantId: 't', userId: 'u', path: '/', key: 'k', bodyHash: 'h' };

test('a project has no more rules than one message of the link can carry; a refused rule uses up neither key nor revision', async () => {
  await binding
    .prepare(
      `with recursive n (i) as (select 2 union all select i + 1 from n where i < ?)
       insert into network_rules (id, project_id, cidr, source, revision, created_by, tenant_id, created_at)
       select i, 'p', i, 'manual', 0, 'u', 't', 0 from n`,
    )
    .bind(NETWORK_RULES_MAX)
    .run();
  const last = ruleRow('192.0.2.1/32');
  expect(await insertRule(db, last, ACTOR, null)).toMatchObject({ ok: true });
  const refused = { code: 'RULE_LIMIT_REACHED', fields: { limit: NETWORK_RULES_MAX } };
  expect(await insertRule(db, ruleRow('192.0.2.2/32'), ACTOR, keyUse)).toEqual({
    ok: false,
    failure: refused,
  });
  expect(await insertRule(db, { ...ruleRow('192.0.2.2/32'), projectId: 'q' }, ACTOR, null)).toMatchObject({
    ok: false,
    failure: { code: 'NOT_FOUND' },
  });
  const ofCreator = ruleStatements(db, [ruleRow('192.0.2.3/32')], sql`true`);
  await inOneBatch(db, ofCreator);
  expect(await db.$count(networkRules)).toBe(NETWORK_RULES_MAX);
  expect((await db.select().from(projects))[0]?.accessRevision).toBe(1);

  await db.delete(networkRules).where(eq(networkRules.id, last.id));
  expect(await insertRule(db, ruleRow('192.0.2.2/32'), ACTOR, keyUse)).toMatchObject({ ok: true });
});
