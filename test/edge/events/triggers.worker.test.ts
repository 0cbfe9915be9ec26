import { eq, sql } from 'drizzle-orm';
import { beforeEach, describe, expect, test } from 'vitest';
import { ruleStatements } from '../../../edge/access/change-rules.ts';
import { confirmAccess } from '../../../edge/access/send-access.ts';
import { transition } from '../../../edge/branches/branch.ts';
import { newSnapshot } from '../../../edge/branches/snapshot.ts';
import { EVENT_TYPES } from '../../../edge/database/column-types.ts';
import { hasChanged, inOneBatch } from '../../../edge/database/database.ts';
import { eventOutbox } from '../../../edge/database/event-schema.ts';
import {
  type BranchRow,
  jobs,
  networkRules,
  projectBranches,
  projects,
  snapshots,
} from '../../../edge/database/schema.ts';
import { follows } from '../../../edge/database/source-schema.ts';
import { Event, toEvent } from '../../../edge/events/event-types.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import { ACTOR, insertBranch, insertProject, startRecords } from '../../support/records/records.ts';

const { binding, db } = await startRecords();
beforeEach(() => db.delete(eventOutbox));

const NOW = new Date('2026-02-01T00:00:00Z');
const ABOUT_RULE = {
  description: null,
  source: 'manual',
  via: 'all' as const,
  revision: 0,
  createdBy: 'u',
  tenantId: 't',
  createdAt: NOW,
  expiresAt: null,
  listVersion: 0,
} as const;
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
  const id = crypto.randomUUID();
  const projectId = crypto.randomUUID();
  await insertProject(db, 'h', projectId);
  const rule = { id, projectId, branchId: null, cidr: '192.0.2.0/24' };
  await db.insert(networkRules).values({ ...rule, ...ABOUT_RULE });
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
    const results = [
      await transition(db, 'proved', thisBranch, NOW),
      await transition(db, 'proved', thisBranch, NOW),
    ];
    expect(results.map(hasChanged)).toEqual([true, false]);
    await db.update(projectBranches).set({ updatedAt: NOW, lifespan: '1m' }).where(thisBranch);
    await db.update(projectBranches).set({ expiresAt: NOW }).where(thisBranch);
    await inOneBatch(db, [transition(db, 'expire', thisBranch, NOW)]);
    const unblocked = { blocked: null, connections_blocked_until: null, closed_to: [] };
    const about = { branch_id: id, branch_name: id, labels: {}, ...unblocked };
    expect(await datas()).toEqual([
      { ...about, status: 'creating', expires_at: null },
      { ...about, status: 'active', expires_at: null },
      { ...about, status: 'active', expires_at: NOW.toISOString() },
      { ...about, status: 'expired', expires_at: NOW.toISOString() },
    ]);
  });

  test('shows that an import fills it, with an end that moves on', async () => {
    const { id } = await insertBranch(db, 'active');
    await published();
    for (const hold of ['import', 'import', null] as const)
      await db.update(projectBranches).set({ hold }).where(eq(projectBranches.id, id));
    expect((await datas()).map(({ blocked }) => blocked)).toEqual([
      { reason: 'import', until: expect.stringMatching(/Z$/) },
      null,
    ]);
  });

  test('has an event when what it follows, its state or its problem changes', async () => {
    await insertProject(db, 'h', 'followed');
    const source = { host: 'db.example.com', port: 5432, database: 'shop', version: '17.2' };
    await published();
    const thisFollow = eq(follows.projectId, 'followed');
    const set = (values: Partial<typeof follows.$inferInsert>) =>
      db.update(follows).set(values).where(thisFollow);
    await db.insert(follows).values({
      projectId: 'followed',
      branchId: 'b',
      tenantId: 't',
      jobId: 'j',
      state: 'copying',
      source,
      createdAt: NOW,
      updatedAt: NOW,
    });
    await set({ state: 'following' });
    await set({ observedAt: NOW, updatedAt: NOW });
    const problem = { code: 'apply', message: 'no', table: null, statement: null };
    await set({ state: 'stopped', problem });
    await db.delete(follows).where(thisFollow);
    const about = { branch_id: 'b', source };
    expect(await datas()).toEqual([
      { ...about, state: 'copying', problem: null },
      { ...about, state: 'following', problem: null },
      { ...about, state: 'stopped', problem },
      { ...about, state: 'deleted', problem: null },
    ]);
  });

  test('shows its labels, and its blocks while they last; a renewed lease is no event', async () => {
    const { id } = await insertBranch(db, 'active');
    await published();
    const set = (values: Partial<typeof projectBranches.$inferInsert>) =>
      db.update(projectBranches).set(values).where(eq(projectBranches.id, id));
    const until = new Date(Date.now() + 3_600_000).toISOString();
    const over = new Date(Date.now() - 3_600_000).toISOString();
    await set({ labels: { pr: '7' } });
    await set({ leaseSeconds: 60, leaseEndsAt: NOW });
    await set({ blocks: [{ reason: 'attempts', until }] });
    await set({
      blocks: [
        { reason: 'attempts', until: over },
        { reason: 'disk', until },
      ],
    });
    await set({ blocks: [] });
    const events = (await datas()).map(({ branch_id: _, branch_name: __, ...shown }) => shown);
    const shown = { status: 'active', expires_at: null, labels: { pr: '7' }, closed_to: [] };
    expect(events).toEqual([
      { ...shown, blocked: null, connections_blocked_until: null },
      { ...shown, blocked: null, connections_blocked_until: until },
      { ...shown, blocked: { reason: 'disk', until }, connections_blocked_until: null },
      { ...shown, blocked: null, connections_blocked_until: null },
    ]);
  });

  test('whose change fails has no event', async () => {
    const { id } = await insertBranch(db, 'creating');
    await published();
    const duplicate = db.insert(projects).values({
      id: 'p',
      name: 'P',
      appKey: 'q',
      env: 'prod',
      status: 'active',
      hostId: 'h',
      createdBy: 'u',
      tenantId: 't',
      createdAt: NOW,
      updatedAt: NOW,
    } as typeof projects.$inferInsert);
    const batch = inOneBatch(db, [transition(db, 'proved', eq(projectBranches.id, id), NOW), duplicate]);
    await expect(batch).rejects.toThrow();
    expect(await published()).toEqual([]);
  });

  test('whose record is removed becomes deleted, once', async () => {
    const refused = await insertBranch(db, 'creating');
    const deleted = await insertBranch(db, 'deleted');
    await published();
    for (const { id } of [refused, deleted])
      await db.delete(projectBranches).where(eq(projectBranches.id, id));
    expect(await datas()).toMatchObject([{ branch_id: refused.id, status: 'deleted' }]);
  });
});

test('a rule is pending, applied, pending again when the host has lost it, and deleted', async () => {
  const id = crypto.randomUUID();
  const rule = { id, projectId: 'p', branchId: null, cidr: '198.51.100.0/24' };
  await inOneBatch(db, ruleStatements(db, [{ ...rule, ...ABOUT_RULE }], sql`true`));
  const [project] = await db.select().from(projects).where(thisProject);
  for (let n = 0; n < 2; n++) await inOneBatch(db, [confirmAccess(db, 'p', project?.accessRevision ?? 0)]);
  await db.update(projects).set({ accessApplied: -1 }).where(thisProject);
  await db.delete(networkRules).where(eq(networkRules.id, id));
  const state = { network_rule_id: id, branch_id: null, cidr: '198.51.100.0/24' };
  const statuses = ['pending', 'applied', 'pending', 'deleted'];
  expect(await datas()).toEqual(statuses.map((status) => ({ ...state, status })));
});

describe('a snapshot', () => {
  const insert = async (about: Partial<typeof snapshots.$inferInsert> = {}) => {
    const row = newSnapshot(
      {
        id: crypto.randomUUID(),
        kind: 'manual',
        name: 'before',
        expiresAt: null,
        branch: { id: 'b', projectId: 'p', branchName: 'pr-7', tenantId: 't' } as BranchRow,
      },
      NOW,
    );
    await db.insert(snapshots).values({ ...row, ...about });
    return eq(snapshots.id, row.id);
  };

  test('is ready when it is taken, then independent, then deleted', async () => {
    const thisOne = await insert();
    const set = (values: Partial<typeof snapshots.$inferInsert>) =>
      db.update(snapshots).set(values).where(thisOne);
    for (let n = 0; n < 2; n++) await set({ status: 'ready', sizeBytes: 5 });
    await set({ ownBytes: 1, sharedBytes: 4 });
    await set({ independent: true });
    await db.delete(snapshots).where(thisOne);
    const [row] = await db.select({ names: eventOutbox.branchNames }).from(eventOutbox);
    expect(row?.names).toEqual(['pr-7']);
    const about = { snapshot_id: expect.any(String), branch_id: 'b', name: 'before', kind: 'manual' };
    expect(await published()).toMatchObject([
      { type: 'snapshot.changed', data: { ...about, status: 'ready', independent: false } },
      { type: 'snapshot.changed', data: { ...about, status: 'ready', independent: true } },
      { type: 'snapshot.changed', data: { ...about, status: 'deleted', independent: true } },
    ]);
  });

  test('that was never taken, and the database of a deleted branch, have no event', async () => {
    for (const status of ['making', 'ready'] as const) {
      const thisOne = await insert({ kind: status === 'ready' ? 'deleted' : 'manual' });
      await db.update(snapshots).set({ status }).where(thisOne);
      await db.delete(snapshots).where(thisOne);
    }
    expect(await published()).toEqual([]);
  });

  test('of main is in no pattern, also when its project is deleted', async () => {
    await insertProject(db, 'h', 'short');
    await insert({ projectId: 'short', branchName: 'main', status: 'ready' });
    await db.delete(projects).where(eq(projects.id, 'short'));
    const rows = await db.select().from(eventOutbox).orderBy(eventOutbox.seq);
    expect(rows.map(({ type, branchNames }) => [type, branchNames])).toEqual([
      ['project.changed', []],
      ['snapshot.changed', []],
      ['project.changed', []],
    ]);
  });
});

test('a job shows its steps, and its failure as the API does', async () => {
  const about = { id: crypto.randomUUID(), projectId: 'p', hostId: 'h', actor: ACTOR };
  const job = newJob('project.delete', { branchId: null }, about, NOW);
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

test('an event names the branches that it is about, and the machine whose job it is', async () => {
  const one = await insertBranch(db, 'active');
  const two = await insertBranch(db, 'active');
  const main = await insertBranch(db, 'active');
  await db.update(projectBranches).set({ isDefault: true }).where(eq(projectBranches.id, main.id));
  await db.delete(eventOutbox);
  const machine = { type: 'key', id: 'k' } as const;
  const about = () => ({
    id: crypto.randomUUID(),
    projectId: 'p',
    hostId: 'h',
    actor: { ...ACTOR, machine },
  });
  const batch = { branchId: null, branchIds: [one.id, two.id] };
  await db.insert(jobs).values(newJob('branch.create', { branchId: one.id }, about(), NOW));
  await db.insert(jobs).values(newJob('branch.create', batch, about(), NOW));
  await db.insert(jobs).values(newJob('branch.create', { branchId: main.id }, about(), NOW));
  const rule = (branchId: string | null, cidr: string) =>
    ({ id: crypto.randomUUID(), projectId: 'p', branchId, cidr, ...ABOUT_RULE }) as const;
  const rules = [rule(one.id, '192.0.2.7/32'), rule(main.id, '192.0.2.8/32'), rule(null, '192.0.2.9/32')];
  await inOneBatch(db, ruleStatements(db, rules, sql`true`));
  const [project] = await db.select().from(projects).where(thisProject);
  await inOneBatch(db, [confirmAccess(db, 'p', project?.accessRevision ?? 0)]);
  for (const { id } of rules) await db.delete(networkRules).where(eq(networkRules.id, id));
  await db.update(projectBranches).set({ status: 'failed' }).where(eq(projectBranches.id, two.id));
  await db.update(projectBranches).set({ expiresAt: NOW }).where(eq(projectBranches.id, main.id));
  await db.update(projects).set({ status: 'deleting' }).where(thisProject);
  const rows = await db.select().from(eventOutbox).orderBy(eventOutbox.seq);
  const named = rows.map(({ type, branchNames, machineId }) => [type, branchNames.toSorted(), machineId]);
  const names = { one: [one.id], both: [one.id, two.id].sort() };
  const ofRules = [names.one, [], []].map((branches) => ['network_rule.changed', branches, null]);
  expect(named.slice(0, 6)).toEqual([
    ['job.changed', names.one, 'k'],
    ['job.changed', names.both, 'k'],
    ['job.changed', [], 'k'],
    ...ofRules,
  ]);
  // Applied in the order of their ids, because they were created together.
  expect(named.slice(6, 9)).toEqual(expect.arrayContaining(ofRules));
  expect(named.slice(9)).toEqual([
    ...ofRules,
    ['branch.changed', [two.id], null],
    ['branch.changed', [], null],
    ['project.changed', [], null],
  ]);
  await db.update(projects).set({ status: 'active' }).where(thisProject);
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
