import { asc, eq } from 'drizzle-orm';
import { expect, test } from 'vitest';
import {
  deleteRule,
  expireRules,
  insertRule,
  nextRuleEnd,
  storeRuleChange,
} from '../../../edge/access/change-rules.ts';
import { auditEvents, networkRules, projects } from '../../../edge/database/schema.ts';
import { ACTOR, ruleRow, startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

const NOW = new Date('2026-11-22T12:00:00Z');
const after = (seconds: number) => new Date(NOW.getTime() + seconds * 1000);

const remaining = async () =>
  (await db.select().from(networkRules).orderBy(asc(networkRules.cidr))).map(({ cidr }) => cidr);
const revision = async () => (await db.select().from(projects))[0]?.accessRevision;
const named = (name: string) => db.select().from(auditEvents).where(eq(auditEvents.name, name));

test('a rule is removed when its end has come, once, with its audit event and a new revision', async () => {
  for (const rule of [
    ruleRow('a', { id: 'a', expiresAt: after(60) }),
    ruleRow('b', { id: 'b', expiresAt: after(120) }),
    ruleRow('c', { id: 'c', expiresAt: null }),
  ])
    expect(await insertRule(db, rule, ACTOR, null)).toMatchObject({ ok: true });
  expect(await revision()).toBe(3);
  expect(await nextRuleEnd(db, 'p')).toBe(after(60).getTime());

  await expireRules(db, 'p', after(59));
  expect([await remaining(), await revision()]).toEqual([['a', 'b', 'c'], 3]);

  await Promise.all([expireRules(db, 'p', after(60)), expireRules(db, 'p', after(60))]);
  expect([await remaining(), await revision()]).toEqual([['b', 'c'], 4]);
  expect(await named('network_rule.expired')).toEqual([
    expect.objectContaining({
      actorId: null,
      tenantId: 't',
      projectId: 'p',
      metadata: { rule_id: 'a', cidr: 'a', expires_at: after(60).toISOString() },
    }),
  ]);
  expect(await nextRuleEnd(db, 'p')).toBe(after(120).getTime());
});

test('an end can be later or never, for rules of the own tenant only', async () => {
  const rule = { projectId: 'p', ruleId: 'b' };
  expect(await storeRuleChange({ expiresAt: after(900) })(db, rule, ACTOR, NOW)).toMatchObject({ ok: true });
  await expireRules(db, 'p', after(120));
  expect([await remaining(), await revision()]).toEqual([['b', 'c'], 4]);
  expect(await named('network_rule.changed')).toEqual([
    expect.objectContaining({ metadata: { rule_id: 'b', cidr: 'b', expires_at: after(900).toISOString() } }),
  ]);
  const stranger = { ...ACTOR, tenantId: 'other' };
  const unknown = { ok: false, failure: { code: 'NOT_FOUND' } };
  expect(await storeRuleChange({ expiresAt: null })(db, rule, stranger, NOW)).toEqual(unknown);
  expect(await deleteRule(db, rule, stranger, NOW)).toEqual(unknown);
  expect(await storeRuleChange({ expiresAt: null })(db, rule, ACTOR, NOW)).toMatchObject({ ok: true });
  await expireRules(db, 'p', after(10_000));
  expect(await remaining()).toEqual(['b', 'c']);
  expect(await nextRuleEnd(db, 'p')).toBe(Number.POSITIVE_INFINITY);
});

test('a rule that opens something else gets a new revision; one that opens the same does not', async () => {
  const rule = { projectId: 'p', ruleId: 'b' };
  const [before] = await db.select().from(projects);
  for (const [via, changes] of [
    ['all', 0],
    ['sql', 1],
    ['sql', 1],
  ] as const) {
    expect(await storeRuleChange({ via })(db, rule, ACTOR, NOW)).toMatchObject({ ok: true });
    expect(await revision()).toBe((before?.accessRevision ?? 0) + changes);
  }
  const [stored] = await db.select().from(networkRules).where(eq(networkRules.id, 'b'));
  expect([stored?.via, stored?.revision]).toEqual(['sql', await revision()]);
  const changed = await named('network_rule.changed');
  expect(changed.at(-1)).toMatchObject({ metadata: { rule_id: 'b', cidr: 'b', via: 'sql' } });
});
