import { and, eq, type SQL, sql } from 'drizzle-orm';
import { beforeEach, expect, test } from 'vitest';
import { auditEvent } from '../../../edge/audit/audit-event.ts';
import { inActiveProject } from '../../../edge/database/conditions.ts';
import { insertIf, isThere } from '../../../edge/database/database.ts';
import { eventOutbox } from '../../../edge/database/event-schema.ts';
import { guardedWrite, type Requirement } from '../../../edge/database/guarded-write.ts';
import { auditEvents, projectBranches, projects } from '../../../edge/database/schema.ts';
import { missing } from '../../../edge/missing.ts';
import { ACTOR, insertBranch, startRecords } from '../../support/records/records.ts';

const NOW = new Date('2026-11-23T12:00:00Z');
const YES = sql`true`;

const { db } = await startRecords();

beforeEach(async () => {
  await db.delete(auditEvents);
  await db.delete(projectBranches);
  await db.delete(eventOutbox);
});

const event = () => auditEvent('branch.created', ACTOR, { projectId: 'p' }, NOW);
const events = sql<number>`(select count(*) from ${auditEvents})`;
const atMost = (limit: number): Requirement => [
  sql`${events} < ${limit}`,
  { code: 'BRANCH_LIMIT_REACHED', fields: { limit, current: events, retry_after: null } },
];
const rename = (name: string) => (isWritten: SQL) =>
  db
    .update(projects)
    .set({ name })
    .where(and(eq(projects.id, 'p'), isWritten));
const nameOf = async () => (await db.select().from(projects))[0]?.name;

test('everything is written if every requirement holds', async () => {
  const written = await guardedWrite(db, {
    decides: [auditEvents, event(), event()],
    require: [...inActiveProject('p', 't'), atMost(1)],
    rest: (isWritten) => [rename('written')(isWritten)],
    returns: db.select({ name: projects.name }).from(projects),
  });
  expect(written).toEqual({ ok: true, value: [{ name: 'written' }] });
  expect(await db.$count(auditEvents)).toBe(2);
});

test.each<[string, readonly [Requirement, ...Requirement[]], object]>([
  [
    'a code',
    [
      [YES, 'NOT_FOUND'],
      [sql`false`, 'HOST_BUSY'],
    ],
    { code: 'HOST_BUSY' },
  ],
  [
    'a failure',
    [[sql`0`, { code: 'HOST_BUSY', fields: { why: 'a', n: 1 } }]],
    { code: 'HOST_BUSY', fields: { why: 'a', n: 1 } },
  ],
  [
    'the first of two',
    [
      [sql`false`, 'NOT_FOUND'],
      [sql`false`, 'HOST_BUSY'],
    ],
    { code: 'NOT_FOUND' },
  ],
  ['a null', [[sql`null`, 'NOT_FOUND']], { code: 'NOT_FOUND' }],
  [
    'a condition with an or',
    [
      [sql`false or false`, 'NOT_FOUND'],
      [YES, 'HOST_BUSY'],
    ],
    { code: 'NOT_FOUND' },
  ],
  ['another tenant', inActiveProject('p', 'other'), missing('project')],
  ['no project', inActiveProject('q', 't'), missing('project')],
  [
    'values',
    [atMost(0)],
    { code: 'BRANCH_LIMIT_REACHED', fields: { limit: 0, current: 0, retry_after: null } },
  ],
])('nothing is written, and the failure is that of the requirement: %s', async (_, require, failure) => {
  await rename('before')(YES);
  const writes = [
    { decides: [auditEvents, event()] as const, rest: (isWritten: SQL) => [rename('after')(isWritten)] },
    { decides: rename('after'), rest: (isWritten: SQL) => [insertIf(db, auditEvents, event(), isWritten)] },
  ];
  for (const write of writes)
    expect(await guardedWrite(db, { ...write, require })).toEqual({ ok: false, failure });
  expect(await db.$count(auditEvents)).toBe(0);
  expect(await nameOf()).toBe('before');
});

test('an update comes after the rest, so that it may change what the requirements read', async () => {
  await rename('before')(YES);
  const write = () =>
    guardedWrite(db, {
      decides: rename('after'),
      require: [[isThere(projects, eq(projects.name, 'before')), 'PROJECT_NOT_ACTIVE']],
      rest: (isWritten) => [insertIf(db, auditEvents, event(), isWritten)],
    });
  expect(await write()).toEqual({ ok: true, value: [] });
  expect(await write()).toEqual({ ok: false, failure: { code: 'PROJECT_NOT_ACTIVE' } });
  expect(await db.$count(auditEvents)).toBe(1);
});

test('of simultaneous writes as many succeed as the limit has room for, and each other sees it as it is', async () => {
  const write = () => guardedWrite(db, { decides: [auditEvents, event()], require: [atMost(3)] });
  const all = await Promise.all(Array.from({ length: 8 }, write));
  const refused = { code: 'BRANCH_LIMIT_REACHED', fields: { limit: 3, current: 3, retry_after: null } };
  expect(all.filter(({ ok }) => ok)).toHaveLength(3);
  expect(all.flatMap((result) => (result.ok ? [] : [result.failure]))).toEqual(Array(5).fill(refused));
  expect(await db.$count(auditEvents)).toBe(3);
});

test('a violated index is the failure of its table and undoes the whole batch; without a code it is an error', async () => {
  const branch = await insertBranch(db, 'active');
  const [row] = await db.select().from(projectBranches).where(eq(projectBranches.id, branch.id));
  if (!row) throw new Error('no branch');
  const write = (conflicts: object) =>
    guardedWrite(db, {
      decides: [auditEvents, event()],
      require: [[YES, 'NOT_FOUND']],
      rest: (isWritten) => [insertIf(db, projectBranches, { ...row, id: crypto.randomUUID() }, isWritten)],
      conflicts,
    });
  expect(await write({ project_branches: 'BRANCH_EXISTS' })).toEqual({
    ok: false,
    failure: { code: 'BRANCH_EXISTS' },
  });
  await expect(write({ projects: 'PROJECT_EXISTS' })).rejects.toThrow();
  expect(await db.$count(auditEvents)).toBe(0);
});

test('rows that triggers write decide nothing', async () => {
  // The update of a branch with the status that it has writes an event only if something else has changed.
  const { id } = await insertBranch(db, 'active');
  const labels = (isAllowed: SQL) =>
    db
      .update(projectBranches)
      .set({ labels: { a: 'b' } })
      .where(and(eq(projectBranches.id, id), isAllowed));
  const write = (require: [Requirement]) => guardedWrite(db, { decides: labels, require });
  const before = await db.$count(eventOutbox);
  expect(await write([[sql`false`, 'NOT_FOUND']])).toMatchObject({ ok: false });
  expect(await db.$count(eventOutbox)).toBe(before);
  expect(await write([[YES, 'NOT_FOUND']])).toMatchObject({ ok: true });
  expect(await write([[YES, 'NOT_FOUND']])).toMatchObject({ ok: true });
  expect(await db.$count(eventOutbox)).toBe(before + 1);
});
