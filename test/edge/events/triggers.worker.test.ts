import { eq, sql } from 'drizzle-orm';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { confirmAccess } from '../../../edge/access/access-revision.ts';
import { ruleStatements } from '../../../edge/access/rule-statements.ts';
import { transition } from '../../../edge/branches/branch-transition.ts';
import { hasChanged, inOneBatch } from '../../../edge/database/database.ts';
import { eventOutbox } from '../../../edge/database/event-schema.ts';
import { jobs, networkRules, projectBranches, projects } from '../../../edge/database/schema.ts';
import { EVENT_TYPES, Event, toEvent } from '../../../edge/events/event-types.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import { ACTOR, insertBranch, insertProject, startRecords } from '../../support/records/records.ts';

const { binding, db, stop } = await startRecords();
afterAll(stop);
beforeEach(() => db.delete(eventOutbox));

const NOW = new Date('2026-02-01T00:00:00Z');
const thisProject = eq(projects.id, 'p');

/** The events since the last call, as they are published. */
async function published() {
  const rows = await db.select().from(eventOutbox).orderBy(eventOutbox.seq);
  await db.delete(eventOutbox);
  // The records have short ids, which `Event` would refuse.
  return rows.map((row) => toEvent(row));
}

const datas = async () => (await published()).map(({ data }) => data);

test('each type of event has triggers, and each trigger a type', async () => {
  const { results } = await binding
    .prepare("select name, sql from sqlite_master where type = 'trigger'")
    .all<{ name: string; sql: string }>();
  const types = results.map(({ sql }) => /SELECT '([a-z_]+\.[a-z_]+)'/.exec(sql)?.[1]);
  expect(new Set(types)).toEqual(new Set(EVENT_TYPES));
  // `wrangler d1 migrations apply` splits a file at semicolons, except between BEGIN and the first END.
  for (const { name, sql } of results) expect(sql.match(/\b(?:END|CASE)\b/gi), name).toEqual(['END']);
});

test('an event has the published form', async () => {
  const [id, projectId] = [crypto.randomUUID(), crypto.randomUUID()];
  await insertProject(db, 'h', projectId);
  const rule = { id, projectId, branchId: null, cidr: '192.0.2.0/24', description: null } as const;
  const about = { source: 'manual', revision: 0, createdBy: 'u', tenantId: 't', createdAt: NOW } as const;
  await db.insert(networkRules).values({ ...rule, ...about });
  const events = await published();
  expect(events.map((event) => Event.parse(event))).toMatchObject([
    { type: 'project.changed', project_id: projectId, data: { status: 'active' } },
    { type: 'network_rule.changed', project_id: projectId, data: { network_rule_id: id, status: 'pending' } },
  ]);
  expect(new Set(events.map((event) => event.id)).size).toBe(2);
  for (const { timestamp } of events)
    expect(Math.abs(Date.parse(timestamp) - Date.now())).toBeLessThan(60_000);
});

describe('a branch', () => {
  test('has one event per change, and none without a change', async () => {
    const { id } = await insertBranch(db, 'creating');
    const thisBranch = eq(projectBranches.id, id);
    const results = await inOneBatch(db, [
      transition(db, 'proved', thisBranch, NOW),
      transition(db, 'proved', thisBranch, NOW),
    ]);
    expect(results.map(hasChanged)).toEqual([true, false]);
    await db.update(projectBranches).set({ updatedAt: NOW, lifespan: '1m' }).where(thisBranch);
    await db.update(projectBranches).set({ expiresAt: NOW }).where(thisBranch);
    await inOneBatch(db, [transition(db, 'expire', thisBranch, NOW)]);
    const about = { branch_id: id, branch_name: id };
    expect(await datas()).toEqual([
      { ...about, status: 'creating', expires_at: null },
      { ...about, status: 'active', expires_at: null },
      { ...about, status: 'active', expires_at: NOW.toISOString() },
      { ...about, status: 'expired', expires_at: NOW.toISOString() },
    ]);
  });

  test('whose change fails has no event', async () => {
    const { id } = await insertBranch(db, 'creating');
    await published();
    const duplicate = db.insert(projects).values({
      ...{ id: 'p', name: 'P', appKey: 'q', env: 'prod', status: 'active', hostId: 'h' },
      ...{ createdBy: 'u', tenantId: 't', createdAt: NOW, updatedAt: NOW },
    } as typeof projects.$inferInsert);
    const batch = inOneBatch(db, [transition(db, 'proved', eq(projectBranches.id, id), NOW), duplicate]);
    await expect(batch).rejects.toThrow();
    expect(await published()).toEqual([]);
  });

  test('whose record is removed becomes deleted, once', async () => {
    const [refused, deleted] = [await insertBranch(db, 'creating'), await insertBranch(db, 'deleted')];
    await published();
    for (const { id } of [refused, deleted])
      await db.delete(projectBranches).where(eq(projectBranches.id, id));
    expect(await datas()).toMatchObject([{ branch_id: refused.id, status: 'deleted' }]);
  });
});

test('a rule is pending, applied, pending again when the host has lost it, and deleted', async () => {
  const id = crypto.randomUUID();
  const rule = { id, projectId: 'p', branchId: null, cidr: '198.51.100.0/24', description: null } as const;
  const about = { source: 'manual', revision: 0, createdBy: 'u', tenantId: 't', createdAt: NOW } as const;
  await inOneBatch(db, ruleStatements(db, [{ ...rule, ...about }], sql`true`));
  const [project] = await db.select().from(projects).where(thisProject);
  for (let n = 0; n < 2; n++) await inOneBatch(db, [confirmAccess(db, 'p', project?.accessRevision ?? 0)]);
  await db.update(projects).set({ accessApplied: -1 }).where(thisProject);
  await db.delete(networkRules).where(eq(networkRules.id, id));
  const state = { network_rule_id: id, branch_id: null, cidr: '198.51.100.0/24' };
  const statuses = ['pending', 'applied', 'pending', 'deleted'];
  expect(await datas()).toEqual(statuses.map((status) => ({ ...state, status })));
});

test('a job shows its steps, and its failure as the API does', async () => {
  const about = { id: crypto.randomUUID(), kind: 'branch.delete', branchId: null } as const;
  const job = newJob({ ...about, projectId: 'p', hostId: 'h', actor: ACTOR }, NOW);
  await db.insert(jobs).values(job);
  const set = (values: Partial<typeof jobs.$inferInsert>) =>
    db
      .update(jobs)
      .set({ ...values, updatedAt: new Date() })
      .where(eq(jobs.id, job.id));
  const step = { name: 'drop', status: 'running', started_at: NOW.toISOString(), finished_at: null } as const;
  await set({ status: 'running', steps: [step] });
  await set({ status: 'running', steps: [step] });
  await set({ error: { code: 'INTERNAL', message: 'a secret of the gateway' }, attempts: 1 });
  const events = await published();
  expect(events.map(({ data }) => [data.status, data.steps, data.attempts])).toEqual([
    ['queued', [], 0],
    ['running', [step], 0],
    ['running', [step], 1],
  ]);
  expect(events.at(-1)?.data.error).toMatchObject({ code: 'INTERNAL' });
  expect(JSON.stringify(events)).not.toContain('secret');
});

test('the storage state is an event, a measurement is none', async () => {
  await db.update(projects).set({ storageUsedBytes: 5 }).where(thisProject);
  await db.update(projects).set({ storageUsedBytes: 9, storageState: 'warning' }).where(thisProject);
  expect(await datas()).toEqual([{ state: 'warning', used_bytes: 9 }]);
});

test('a project is deleted after all that belongs to it', async () => {
  await insertProject(db, 'h', 'doomed');
  await insertBranch(db, 'deleting', null, 'doomed');
  await published();
  await db.delete(projects).where(eq(projects.id, 'doomed'));
  expect((await published()).map(({ type, data }) => [type, data.status])).toEqual([
    ['branch.changed', 'deleted'],
    ['project.changed', 'deleted'],
  ]);
});
