import { and, count, eq, ne, sql } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { accessReads, confirmAccess, sendAccess } from '../../../edge/access/send-access.ts';
import { noActor } from '../../../edge/audit/audit-event.ts';
import { drains, KEPT_MS, moves } from '../../../edge/database/move-schema.ts';
import {
  auditEvents,
  hosts,
  jobs,
  projectBranches,
  projects,
  snapshots,
} from '../../../edge/database/schema.ts';
import { whileAdmitted } from '../../../edge/moves/moving.ts';
import { movingBranches, reserveMove } from '../../../edge/moves/reserve.ts';
import { PHASES } from '../../../edge/moves/states.ts';
import { fence, switchHost } from '../../../edge/moves/switch.ts';
import { readRecords } from '../../../edge/reconciliation/differences.ts';
import { readSettings } from '../../../edge/settings.ts';
import type { HostFailureCode } from '../../../shared/protocol/host-failures.ts';
import type { Method } from '../../../shared/protocol/operations.ts';
import { eventually } from '../../support/eventually.ts';
import { firstByDay } from '../../support/nightly.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const AWAY = { code: 'POSTGRES_UNAVAILABLE', message: 'planted' } as const;
const GONE = { code: 'HOST_UNAVAILABLE', message: 'planted' } as const;
const REFUSED = { code: 'STATEMENT_REFUSED', message: 'planted' } as const;

interface MoveBody extends Record<string, unknown> {
  state: string;
  branches: { name: string; state: string; read_only: boolean }[];
  job: { id: string; status: string; error: { code: string } | null; steps: { name: string }[] };
}

let gateway: TripsGateway;
/** A project on each of the two hosts, which stays. */
let onFrom: string;
let onTo: string;
let from: string;
let to: string;
let projectId: string;
let path: string;

const hostOf = async (id: string) => {
  const [project] = await gateway.db.select().from(projects).where(eq(projects.id, id));
  return project?.hostId ?? '';
};

beforeAll(async () => {
  gateway = await startTripsGateway(0);
  onFrom = (await gateway.api.project('From')).id;
  onTo = (await gateway.api.project('To')).id;
  await gateway.moveProject(onTo);
  from = await hostOf(onFrom);
  to = await hostOf(onTo);
  // No drain moves it: by it the tests reach the host. It would be the first one.
  await gateway.db
    .update(projects)
    .set({ status: 'failed', storageUsedBytes: -1 })
    .where(eq(projects.id, onFrom));
});
afterAll(() => gateway?.stop());
beforeEach(async () => {
  for (const project of [onFrom, onTo]) await gateway.forgetCalls(project);
  await gateway.db.update(hosts).set({ draining: true }).where(eq(hosts.id, to));
  projectId = (await gateway.api.project('Shop')).id;
  await gateway.db.update(hosts).set({ draining: false }).where(eq(hosts.id, to));
  path = `/platform/v1/projects/${projectId}/move`;
  await gateway.api.branch(projectId, 'pr-1');
});

async function plant(project: string, method: Method, failure: { code: HostFailureCode; message: string }) {
  await gateway.plantFailure(project, method, failure);
  return async () => {
    await gateway.plantFailure(project, method, null);
    await gateway.coordinatorOf(projectId).wake();
  };
}

const begin = (more: object = {}) => gateway.platform.post<MoveBody>(path, { host_id: to, ...more });
const shown = async () => (await gateway.platform.get<MoveBody>(path)).body;
const ended = (status: string) =>
  eventually(async () => {
    const move = await shown();
    expect(move.job, JSON.stringify(move.job)).toMatchObject({ status });
    return move;
  });
const audited = async (name: string) =>
  gateway.db
    .select()
    .from(auditEvents)
    .where(and(eq(auditEvents.projectId, projectId), eq(auditEvents.name, name)));

/** The record has what the table of phases says. */
async function expectAllowed() {
  const [row] = await gateway.db.select().from(moves).where(eq(moves.projectId, projectId));
  if (!row) throw new Error('a move without a record');
  const { columns, branches } = PHASES[row.phase];
  for (const [column, presence] of Object.entries(columns)) {
    const isSet = row[column as keyof typeof columns] !== null;
    if (presence !== 'either')
      expect(isSet, `${column} of a move that is ${row.phase}`).toBe(presence === 'set');
  }
  for (const { name, state } of row.branches) expect(branches, `${name} of ${row.phase}`).toContain(state);
  return row;
}

async function expectMoved() {
  const move = await ended('succeeded');
  expect(move).toMatchObject({ state: 'moved', kept_until: expect.any(String) });
  const [project] = await gateway.db.select().from(projects).where(eq(projects.id, projectId));
  expect(project).toMatchObject({ hostId: to, status: 'active' });
  expect(project?.accessApplied).toBe(project?.accessRevision);
  expect((await expectAllowed()).sealedPassword).toBeNull();
  expect(await audited('project.moved')).toHaveLength(1);
  return move;
}

async function expectUndone(code: string) {
  const move = await ended('failed');
  expect(move).toMatchObject({ state: 'undone', kept_until: null });
  expect(move.job.error).toMatchObject({ code });
  const [project] = await gateway.db.select().from(projects).where(eq(projects.id, projectId));
  expect(project).toMatchObject({ hostId: from, status: 'active' });
  expect(project?.accessApplied).toBe(project?.accessRevision);
  expect((await expectAllowed()).sealedPassword).toBeNull();
  expect(await gateway.api.branch(projectId, 'afterwards')).toMatchObject({ status: 'active' });
}

/** What each step calls, and on which host. */
const BUILDING: [step: string, host: 'from' | 'to', method: Method][] = [
  ['copy', 'to', 'transfer.copy'],
  ['admit', 'from', 'move.admit'],
  ['fence', 'to', 'follow.cutover'],
  ['clear', 'to', 'project.drop'],
  ['build', 'to', 'branch.prepare'],
  ['build', 'to', 'branch.clone'],
  ['build', 'to', 'branch.finalize'],
  ['clear', 'to', 'transfer.probe'],
  ['copy', 'to', 'reset.swap'],
  ['copy', 'to', 'follow.start'],
  ['copy', 'to', 'snapshot.drop'],
  ['compare', 'to', 'follow.status'],
  ['compare', 'to', 'move.compare'],
  ['fence', 'from', 'move.close'],
  ['fence', 'to', 'project.size'],
];
const AFTER: typeof BUILDING = [
  ['open', 'to', 'access.apply'],
  ['release', 'from', 'move.release'],
];
const projectOn = (host: 'from' | 'to') => (host === 'from' ? onFrom : onTo);

test('a project moves with its branches, and its record names the other host', async () => {
  const { status, body } = await begin();
  expect([status, body]).toMatchObject([202, { state: 'building', from_host_id: from, to_host_id: to }]);
  const move = await expectMoved();
  expect(move.branches).toMatchObject([
    { name: 'main', state: 'copied', read_only: false },
    { name: 'pr-1', state: 'copied', read_only: true },
  ]);
  expect(await audited('project.move.started')).toHaveLength(1);
  expect(await gateway.api.branch(projectId, 'afterwards')).toMatchObject({ status: 'active' });
  // The former host has the closed databases for a day.
  const now = new Date();
  const later = new Date(now.getTime() + 86_500_000);
  const inWork = async (at: Date) =>
    (await readRecords(gateway.db, from, at)).inWork.map((work) => work.projectId);
  expect(await inWork(now)).toContain(projectId);
  expect(await inWork(later)).not.toContain(projectId);
});

describe.each(firstByDay(1, [...BUILDING, ...AFTER]))('a call of %s on %s: %s', (_step, host, method) => {
  test('is repeated until it succeeds', async () => {
    const succeed = await plant(projectOn(host), method, AWAY);
    await begin();
    await eventually(async () => {
      const { job } = await shown();
      expect(job.status).toBe('running');
      expect(JSON.stringify(job.steps)).toContain('failed');
    });
    // Both hosts leave it alone meanwhile.
    for (const id of [from, to])
      expect((await readRecords(gateway.db, id, new Date())).inWork).toContainEqual(
        expect.objectContaining({ projectId }),
      );
    await succeed();
    await expectMoved();
  });
});

test.each(firstByDay(1, BUILDING))(
  'a refusal in %s on %s by %s undoes the move',
  async (_step, host, method) => {
    const isOfUndo = method === 'access.apply' || method === 'project.drop';
    const succeed = await plant(projectOn(host), method, REFUSED);
    await begin();
    if (isOfUndo) {
      await eventually(async () => expect((await shown()).job.error).not.toBeNull());
      await succeed();
    }
    // The job does not show what the host has said.
    await expectUndone('INTERNAL');
  },
);

test.each(firstByDay(1, AFTER))(
  'after the switch, a refusal in %s on %s by %s is tried again',
  async (_step, host, method) => {
    const succeed = await plant(projectOn(host), method, REFUSED);
    await begin();
    await eventually(async () => expect(await shown()).toMatchObject({ state: 'moved' }));
    expect(await gateway.platform.delete(path)).toMatchObject({ body: { error: 'MOVE_FINISHING' } });
    await succeed();
    await expectMoved();
  },
);

const isCancellable = (step: string) => step !== 'fence';
test.each(
  firstByDay(
    1,
    BUILDING.filter(([step]) => isCancellable(step)),
  ),
)('a move that is cancelled in %s on %s during %s is undone', async (_step, host, method) => {
  const succeed = await plant(projectOn(host), method, AWAY);
  await begin();
  await eventually(async () => expect(JSON.stringify((await shown()).job.steps)).toContain('failed'));
  expect((await gateway.platform.delete(path)).status).toBe(202);
  await succeed();
  await expectUndone('JOB_CANCELLED');
  expect(await audited('project.move.cancelled')).toHaveLength(1);
});

test('a move back that is undone before it begins leaves what the earlier one has kept', async () => {
  await begin();
  await expectMoved();
  const isKept = async () =>
    (await readRecords(gateway.db, from, new Date())).inWork.some((work) => work.projectId === projectId);
  const drops = () => gateway.countCalls(onFrom, 'project.drop');
  const before = await drops();
  const back = async (project: string, method: Method) => {
    const [{ updatedAt } = { updatedAt: null }] = await gateway.db
      .select()
      .from(moves)
      .where(eq(moves.projectId, projectId));
    await plant(project, method, REFUSED);
    expect((await begin({ host_id: from })).status).toBe(202);
    await eventually(async () => {
      const [row] = await gateway.db.select().from(moves).where(eq(moves.projectId, projectId));
      expect(row?.updatedAt).not.toEqual(updatedAt);
      expect(await shown()).toMatchObject({ state: 'undone', job: { status: 'failed' } });
    });
    await gateway.plantFailure(project, method, null);
    expect(await hostOf(projectId)).toBe(to);
  };
  await back(onTo, 'move.admit');
  await back(onFrom, 'transfer.probe');
  expect(await isKept()).toBe(true);
  expect(await drops()).toBe(before);
  await back(onFrom, 'transfer.copy');
  expect(await drops()).toBeGreaterThan(before);
});

const setMove = (change: Partial<typeof moves.$inferInsert>) =>
  gateway.db.update(moves).set(change).where(eq(moves.projectId, projectId));
const minutesAgo = (minutes: number) => new Date(Date.now() - minutes * 60_000);
const hasFailedOnce = () =>
  eventually(async () => expect(JSON.stringify((await shown()).job.steps)).toContain('failed'));
const wake = async () => gateway.coordinatorOf(projectId).wake();

test.each(
  firstByDay(1, [
    ['to', 'follow.cutover'],
    ['from', 'move.close'],
  ] as const),
)(
  'a project that is closed for two minutes, because the host %s is away from %s, is opened again',
  async (host, method) => {
    const succeed = await plant(projectOn(host), method, AWAY);
    await begin();
    await hasFailedOnce();
    expect(await shown()).toMatchObject({ state: 'fenced', job: { status: 'running', error: null } });
    // Whatever access is sent meanwhile admits nobody.
    const [, , closed] = await gateway.db.batch(accessReads(gateway.db, projectId));
    expect(closed).toHaveLength(2);
    await setMove({ fencedAt: minutesAgo(3) });
    await wake();
    await expectUndone('HOST_UNAVAILABLE');
    await succeed();
    // A drain tries it again.
    await gateway.platform.post(`/platform/v1/hosts/${from}/drain`, {});
    const drain = await gateway.platform.get<{ failed: unknown[] }>(`/platform/v1/hosts/${from}/drain`);
    expect(JSON.stringify(drain.body.failed)).not.toContain(projectId);
    await gateway.platform.patch(`/platform/v1/hosts/${from}`, { draining: false });
    await eventually(async () => expect((await shown()).job.status).not.toBe('running'));
  },
);

test('branches that were written while they could only be read undo the move', async () => {
  const [branch] = await gateway.db
    .select()
    .from(projectBranches)
    .where(and(eq(projectBranches.projectId, projectId), eq(projectBranches.branchName, 'pr-1')));
  const answer = { admitted_at: '2026-01-01 00:00:00+00', written_lsn: '0/0', changed: [branch?.id ?? ''] };
  await gateway.plantAnswer(onFrom, 'move.close', answer);
  await begin();
  const { job } = await ended('failed');
  expect(job.error).toMatchObject({ message: expect.stringContaining('pr-1: changed while') });
  await gateway.plantFailure(onFrom, 'move.close', null);
  await expectUndone('SOURCE_UNSUITABLE');
});

test('a copy that the other host has lost undoes the move', async () => {
  await gateway.plantAnswer(onTo, 'project.size', { project_id: projectId, sizes: {} });
  await begin();
  const { job } = await ended('failed');
  expect(job.error).toMatchObject({ message: expect.stringContaining('lost on the other host') });
  await gateway.plantFailure(onTo, 'project.size', null);
  await expectUndone('SOURCE_UNSUITABLE');
});

test('a branch that is protected while the project moves is not deleted', async () => {
  const succeed = await plant(onTo, 'move.compare', AWAY);
  await begin({ branches: 'protected' });
  await hasFailedOnce();
  await gateway.db
    .update(projectBranches)
    .set({ protected: true })
    .where(and(eq(projectBranches.projectId, projectId), eq(projectBranches.branchName, 'pr-1')));
  await succeed();
  await expectUndone('SOURCE_UNSUITABLE');
  const [branch] = await gateway.db
    .select()
    .from(projectBranches)
    .where(and(eq(projectBranches.projectId, projectId), eq(projectBranches.branchName, 'pr-1')));
  expect(branch).toMatchObject({ status: 'active', protected: true });
});

test('an access that the former host confirms late does not count on the other one', async () => {
  await begin();
  await expectMoved();
  const [before] = await gateway.db.select().from(projects).where(eq(projects.id, projectId));
  await confirmAccess(gateway.db, projectId, 1_000, from);
  const [after] = await gateway.db.select().from(projects).where(eq(projects.id, projectId));
  expect(after?.accessApplied).toBe(before?.accessApplied);
  // Sent to the one, and confirmed when the project is on the other.
  const thisProject = eq(projects.id, projectId);
  await gateway.db.update(projects).set({ accessRevision: sql`access_revision + 1` }).where(thisProject);
  const switching = () => async () => {
    await gateway.db.update(projects).set({ hostId: from }).where(thisProject);
    return {} as never;
  };
  await sendAccess(gateway.db, readSettings(SETTINGS).CREDENTIAL_KEYS, switching, projectId);
  const [last] = await gateway.db.select().from(projects).where(thisProject);
  expect(last?.accessApplied).toBe(before?.accessApplied);
  await gateway.db.update(projects).set({ hostId: to }).where(thisProject);
});

test('what the former host has is kept until the other one has opened the project', async () => {
  const succeed = await plant(onTo, 'access.apply', GONE);
  await begin();
  await eventually(async () => expect(await shown()).toMatchObject({ state: 'moved' }));
  await hasFailedOnce();
  await setMove({ keptUntil: new Date(minutesAgo(20).getTime() + KEPT_MS) });
  await wake();
  await ended('succeeded');
  const later = new Date(Date.now() + 2 * KEPT_MS);
  const isKept = async () =>
    (await readRecords(gateway.db, from, later)).inWork.some((work) => work.projectId === projectId);
  expect(await isKept()).toBe(true);
  await succeed();
  await eventually(async () => expect(await isKept()).toBe(false));
});

test('a login that the former host has removed undoes the move', async () => {
  await gateway.plantAnswer(onFrom, 'move.close', { admitted_at: null, written_lsn: null, changed: [] });
  await begin();
  await ended('failed');
  await gateway.plantFailure(onFrom, 'move.close', null);
  await expectUndone('SOURCE_UNSUITABLE');
});

const CANCELLED = { code: 'JOB_CANCELLED', message: 'planted' };
const setError = (error: typeof CANCELLED) =>
  gateway.db
    .update(jobs)
    .set({ error })
    .where(and(eq(jobs.projectId, projectId), eq(jobs.kind, 'project.move')));

test('a move that is to be undone does not switch, whatever an earlier attempt does', async () => {
  const succeed = await plant(onTo, 'follow.cutover', AWAY);
  await begin();
  await hasFailedOnce();
  const [row] = await gateway.db
    .select()
    .from(jobs)
    .where(and(eq(jobs.projectId, projectId), eq(jobs.kind, 'project.move')));
  await setError(CANCELLED);
  // The attempt that began before, at its statement that decides.
  const callHostOf = () => async () => ({}) as never;
  const context = { db: gateway.db, job: row, callHost: callHostOf(), callHostOf } as never;
  const [move] = await gateway.db.select().from(moves).where(eq(moves.projectId, projectId));
  await expect(switchHost(context, { move } as never)).rejects.toThrow('being undone');
  expect(await hostOf(projectId)).toBe(from);
  await succeed();
  await expectUndone('JOB_CANCELLED');
  await expect(switchHost(context, { move } as never)).rejects.toThrow('being undone');
  expect(await hostOf(projectId)).toBe(from);
});

test('a move that has switched is not undone, whatever error a later attempt has stored', async () => {
  const succeed = await plant(onTo, 'access.apply', AWAY);
  await begin();
  await eventually(async () => expect(await shown()).toMatchObject({ state: 'moved' }));
  await setError(CANCELLED);
  await succeed();
  await expectMoved();
});

test.each(
  firstByDay(1, [
    ['move.admit', 'from'],
    ['transfer.probe', 'to'],
  ] as const),
)('a host that is lost before the fence undoes the move: %s on %s', async (method, host) => {
  const succeed = await plant(projectOn(host), method, GONE);
  await begin();
  await hasFailedOnce();
  expect(await shown()).toMatchObject({ state: 'building', job: { error: null } });
  await setMove({ awaySince: minutesAgo(20) });
  await wake();
  await eventually(async () => expect((await shown()).job.error).not.toBeNull());
  await succeed();
  await expectUndone('HOST_UNAVAILABLE');
});

test.each(
  firstByDay(1, [
    ['access.apply', 'to'],
    ['move.release', 'from'],
  ] as const),
)('a host that is lost after the switch holds up no job: %s on %s', async (method, host) => {
  await plant(projectOn(host), method, GONE);
  await begin();
  await eventually(async () => expect(await shown()).toMatchObject({ state: 'moved' }));
  await hasFailedOnce();
  await setMove({ keptUntil: new Date(minutesAgo(20).getTime() + KEPT_MS) });
  await wake();
  await ended('succeeded');
  expect(await hostOf(projectId)).toBe(to);
});

test.each(
  firstByDay(1, [
    ['project.drop', 'to'],
    ['move.release', 'from'],
    ['transfer.cancel', 'to'],
  ] as const),
)('a host that is lost holds up no undoing: %s on %s', async (method, host) => {
  await plant(onTo, 'move.compare', AWAY);
  await begin();
  // A move calls it before it copies too.
  await hasFailedOnce();
  await plant(projectOn(host), method, AWAY);
  const refuse = await plant(onTo, 'move.compare', REFUSED);
  await wake();
  await eventually(async () =>
    expect(await shown()).toMatchObject({ state: 'undone', job: { status: 'running' } }),
  );
  await setMove({ updatedAt: minutesAgo(20) });
  await wake();
  await expectUndone('INTERNAL');
  await refuse();
});

test('an undoing ends, if the other host has clients of the project because the records are older than a switch', async () => {
  const refuse = await plant(onTo, 'move.compare', REFUSED);
  await plant(onTo, 'project.drop', { code: 'INVALID_CALL', message: 'planted' });
  await begin();
  await eventually(async () => expect(JSON.stringify((await shown()).job.steps)).toContain('failed'));
  await refuse();
  await expectUndone('INTERNAL');
});

test('a project whose tenant has not been informed of a failover moves once that is done', async () => {
  const setOwes = (owesNotice: boolean) =>
    gateway.db.update(projects).set({ owesNotice }).where(eq(projects.id, projectId));
  await setOwes(true);
  await begin();
  await hasFailedOnce();
  expect(await shown()).toMatchObject({ state: 'building', job: { error: null } });
  expect(await hostOf(projectId)).toBe(from);
  await setOwes(false);
  await wake();
  await expectMoved();
});

test('a branch that was made while the move was requested is not left behind', async () => {
  const [project] = await gateway.db.select().from(projects).where(eq(projects.id, projectId));
  if (!project) throw new Error('no project');
  const racing = new Proxy(gateway.db, {
    get: (db, name) =>
      name === 'batch'
        ? async (statements: never) => {
            await gateway.api.branch(projectId, 'meanwhile');
            return db.batch(statements);
          }
        : Reflect.get(db, name).bind(db),
  });
  const request = {
    jobId: crypto.randomUUID(),
    project,
    toHostId: to,
    ofDrain: false,
    dropsSnapshots: false,
    branches: 'all' as const,
    actor: noActor(project.tenantId),
  };
  const reserved = await reserveMove(racing, readSettings(SETTINGS), request, {}, new Date());
  expect(reserved).toMatchObject({ ok: false, failure: { code: 'PROJECT_BUSY' } });
  // Branches that shared blocks would be over the quota on the other host.
  const physical = { ...readSettings(SETTINGS), STORAGE_ACCOUNTING: 'physical' as const };
  const sizes = Object.fromEntries([[project.id, 0]]);
  for (const { id } of await movingBranches(gateway.db, projectId, {})) sizes[id] = 2 ** 50;
  expect(await reserveMove(gateway.db, physical, request, sizes, new Date())).toMatchObject({
    ok: false,
    failure: { code: 'STORAGE_QUOTA_EXCEEDED' },
  });
  expect((await begin()).status).toBe(202);
  expect((await expectMoved()).branches.map(({ name }) => name)).toEqual(['main', 'pr-1', 'meanwhile']);
});

test('an extension of the login that is under way ends before its step', async () => {
  let ended = 0;
  const callHost = async () => {
    await new Promise((resolve) => setTimeout(resolve, 200));
    ended += 1;
    return { admitted_at: 'then', can_remove: true } as never;
  };
  const job = { id: crypto.randomUUID(), projectId };
  const branches = [{ id: crypto.randomUUID(), name: 'main', database: 'db', frozen: false }];
  const moving = { move: { branches, admittedAt: 'then' }, to: { dbHost: 'db.example.com' }, password: 'x' };
  const work = () => new Promise((resolve) => setTimeout(resolve, 60));
  await whileAdmitted({ callHost, job } as never, moving as never, work, 50);
  expect(ended).toBe(1);
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(ended).toBe(1);
});

test('before the former host is closed it compares its branches, and the other one opens its logins to no network', async () => {
  const calls: unknown[] = [];
  type Call = { closes_next?: boolean; access?: { rules: []; closed: []; revision: number } };
  const callHost = async (method: string, { closes_next, access }: Call) => {
    calls.push([method, closes_next ?? access]);
    return { admitted_at: 'then', can_remove: true };
  };
  const { id } = await gateway.api.project('Ready');
  const [before] = await gateway.db.select().from(projects).where(eq(projects.id, id));
  const branches = [{ id: crypto.randomUUID(), name: 'main', database: 'db', frozen: false }];
  const move = { branches, admittedAt: 'then', phase: 'building' };
  const job = { id: crypto.randomUUID(), projectId: id, input: { toHostId: to } };
  const settings = { CREDENTIAL_KEYS: [] };
  const context = { callHost, callHostOf: () => callHost, job, db: gateway.db, settings };
  // No move of this job is on record, so it ends here.
  await expect(fence(context as never, { move, password: 'x' } as never)).rejects.toThrow();
  const revision = (before?.accessRevision ?? 0) + 1;
  const ready = expect.objectContaining({ rules: [], closed: [], verifiers: {}, revision });
  expect(calls).toHaveLength(2);
  expect(calls).toEqual(
    expect.arrayContaining([
      ['move.admit', true],
      ['access.apply', ready],
    ]),
  );
});

test('a host that was set up for an earlier release is refused with what to do', async () => {
  const isRefused = async (remedy: string) => {
    await begin();
    const { job } = await ended('failed');
    expect(job.error).toMatchObject({ code: 'SOURCE_UNSUITABLE', message: expect.stringContaining(remedy) });
    expect(await hostOf(projectId)).toBe(from);
  };
  await gateway.plantAnswer(onFrom, 'move.admit', { admitted_at: 'now', can_remove: false });
  await isRefused('Replace its pg_hba.conf and pg_ident.conf');
  await gateway.plantFailure(onFrom, 'move.admit', null);
  const wrong = {
    problem: 'wal_level',
    severity: 'error',
    path: 'source_url',
    object: null,
    statement: null,
  } as const;
  await gateway.plantAnswer(onTo, 'transfer.probe', {
    source: null,
    findings: [{ ...wrong, message: 'wal_level is replica.' }],
  });
  await isRefused('wal_level is replica. Set wal_level and max_slot_wal_keep_size');
});

test('a former host that is only not reached is waited for, and what is wrong there is not', async () => {
  const finding = { severity: 'error', path: 'source_url', object: null, statement: null } as const;
  const answer = (problem: 'connection' | 'large_objects') =>
    gateway.plantAnswer(onTo, 'transfer.copy', {
      copied: null,
      findings: [{ ...finding, problem, message: 'planted' }],
    });
  await answer('connection');
  await begin();
  await eventually(async () => {
    const { job } = await shown();
    expect(JSON.stringify(job.steps)).toContain('failed');
    expect(job).toMatchObject({ status: 'running', error: null });
  });
  await answer('large_objects');
  await gateway.coordinatorOf(projectId).wake();
  await expectUndone('SOURCE_UNSUITABLE');
});

test('a branch that was frozen with another login has been writable, so the move is undone', async () => {
  const succeed = await plant(onTo, 'move.compare', AWAY);
  await begin();
  await eventually(async () => expect(JSON.stringify((await shown()).job.steps)).toContain('failed'));
  await gateway.db.update(moves).set({ admittedAt: 'before' }).where(eq(moves.projectId, projectId));
  await succeed();
  await expectUndone('SOURCE_UNSUITABLE');
});

test('during a move the databases stay as they are', async () => {
  const succeed = await plant(onTo, 'transfer.copy', AWAY);
  await begin();
  const api = `/api/v1/projects/${projectId}`;
  const moving = { status: 409, body: { error: 'PROJECT_MOVING' } };
  expect(await gateway.api.post(`${api}/branches`, { branch_name: 'late' })).toMatchObject(moving);
  expect(await gateway.api.delete(`${api}/branches/pr-1`)).toMatchObject(moving);
  expect(await gateway.api.post(`${api}/branches/pr-1/reset`, { to: 'parent' })).toMatchObject(moving);
  expect(await gateway.api.post(`${api}/branches/main/snapshots`, {})).toMatchObject(moving);
  expect(await begin()).toMatchObject(moving);
  const source_url = 'postgresql://app:secret@db.example.com:5432/shop';
  expect(await gateway.api.post(`${api}/follow`, { source_url })).toMatchObject(moving);
  expect(await gateway.api.post(`${api}/import`, { source_url })).toMatchObject(moving);
  await gateway.db
    .update(projectBranches)
    .set({ leaseSeconds: 3600 })
    .where(and(eq(projectBranches.projectId, projectId), eq(projectBranches.branchName, 'pr-1')));
  expect(await gateway.api.post(`${api}/branches/pr-1/rehearsal`, {})).toMatchObject(moving);
  // Rules go on.
  await gateway.api.allow(projectId, '192.0.2.0/24');
  await succeed();
  await expectMoved();
});

test('a deletion during a move ends it, and drops what both hosts have', async () => {
  await plant(onTo, 'transfer.copy', AWAY);
  const onFromBefore = await gateway.countCalls(onFrom, 'project.drop');
  const onToBefore = await gateway.countCalls(onTo, 'project.drop');
  const releases = await gateway.countCalls(onFrom, 'move.release');
  await begin();
  await eventually(async () => expect(JSON.stringify((await shown()).job.steps)).toContain('failed'));
  expect((await gateway.api.delete(`/api/v1/projects/${projectId}`)).status).toBe(202);
  await eventually(async () =>
    expect(await gateway.db.select().from(projects).where(eq(projects.id, projectId))).toEqual([]),
  );
  expect(await gateway.countCalls(onFrom, 'project.drop')).toBeGreaterThan(onFromBefore);
  expect(await gateway.countCalls(onTo, 'project.drop')).toBeGreaterThan(onToBefore + 1);
  expect(await gateway.countCalls(onFrom, 'move.release')).toBeGreaterThan(releases);
});

test('branches that are left out are deleted when the project has moved, and snapshots on request', async () => {
  const [main] = await gateway.db
    .select()
    .from(projectBranches)
    .where(and(eq(projectBranches.projectId, projectId), eq(projectBranches.isDefault, true)));
  const taken = await gateway.api.post(`/api/v1/projects/${projectId}/branches/${main?.id}/snapshots`, {});
  expect(taken.status).toBe(201);
  expect(await begin({ branches: 'protected' })).toMatchObject({
    status: 409,
    body: { error: 'SNAPSHOTS_STAY' },
  });
  await begin({ branches: 'protected', drop_snapshots: true });
  const move = await expectMoved();
  expect(move.branches).toMatchObject([{ name: 'main' }]);
  const branches = await gateway.db
    .select()
    .from(projectBranches)
    .where(eq(projectBranches.projectId, projectId));
  expect(branches.map(({ branchName, status }) => [branchName, status]).sort()).toEqual([
    ['main', 'active'],
    ['pr-1', 'deleted'],
  ]);
  expect(await gateway.db.select().from(snapshots).where(eq(snapshots.projectId, projectId))).toEqual([]);
  const left = branches.find(({ branchName }) => branchName === 'pr-1');
  expect(await audited('branch.deleted')).toMatchObject([
    { branchId: left?.id, metadata: { branch_name: 'pr-1', reason: 'left_out_of_move' } },
  ]);
});

describe('a move is refused', () => {
  test('to an unknown host, and to its own', async () => {
    expect((await begin({ host_id: crypto.randomUUID() })).status).toBe(404);
    expect(await begin({ host_id: from })).toMatchObject({
      status: 422,
      body: { error: 'VALIDATION_FAILED', details: [{ path: 'host_id' }] },
    });
  });

  test('to a host that has no place once others that move there have arrived', async () => {
    const other = (await gateway.api.project('Other')).id;
    await gateway.db.update(projects).set({ hostId: from }).where(eq(projects.id, other));
    const succeed = await plant(onTo, 'transfer.copy', AWAY);
    await begin();
    const [{ count: present } = { count: 0 }] = await gateway.db
      .select({ count: count() })
      .from(projects)
      .where(and(eq(projects.hostId, to), ne(projects.status, 'failed')));
    await gateway.db
      .update(hosts)
      .set({ capacity: present + 1 })
      .where(eq(hosts.id, to));
    const there = await gateway.platform.post(`/platform/v1/projects/${other}/move`, { host_id: to });
    expect(there).toMatchObject({ status: 503, body: { error: 'HOST_FULL' } });
    await gateway.db.update(hosts).set({ capacity: null }).where(eq(hosts.id, to));
    await succeed();
    await expectMoved();
  });

  test('to a host that is full, draining or away', async () => {
    const setTo = (change: Partial<typeof hosts.$inferInsert>) =>
      gateway.db.update(hosts).set(change).where(eq(hosts.id, to));
    await setTo({ capacity: 0 });
    expect(await begin()).toMatchObject({ status: 503, body: { error: 'HOST_FULL' } });
    await setTo({ capacity: null, freeBytes: 1 });
    expect(await begin()).toMatchObject({ status: 503, body: { error: 'HOST_FULL' } });
    await setTo({ freeBytes: null, draining: true });
    expect(await begin()).toMatchObject({ status: 503, body: { error: 'HOST_UNAVAILABLE' } });
    await setTo({ draining: false });
  });

  test('of a project that follows, is over its quota, is being deleted, or is unknown', async () => {
    const source_url = 'postgresql://app:secret@db.example.com:5432/shop';
    await gateway.api.post(`/api/v1/projects/${projectId}/follow`, { source_url });
    expect((await begin()).body.error).toMatch(/^(PROJECT_BUSY|FOLLOW_STATE)$/);
    await eventually(async () => expect((await begin()).body).toMatchObject({ error: 'FOLLOW_STATE' }));
    const other = (await gateway.api.project('Full')).id;
    path = `/platform/v1/projects/${other}/move`;
    const target = (await hostOf(other)) === to ? from : to;
    // Without a quota the next evaluation leaves it closed.
    await gateway.db
      .update(projects)
      .set({ storageState: 'closed', storageQuotaGib: 0 })
      .where(eq(projects.id, other));
    expect(await begin({ host_id: target })).toMatchObject({ body: { error: 'WRITE_BLOCKED' } });
    await gateway.db.update(projects).set({ status: 'deleting' }).where(eq(projects.id, other));
    expect(await begin({ host_id: target })).toMatchObject({ body: { error: 'PROJECT_NOT_ACTIVE' } });
    path = `/platform/v1/projects/${crypto.randomUUID()}/move`;
    expect((await begin()).status).toBe(404);
  });
});

test('a drain says what it waits for, and ends when its host only gets no new projects', async () => {
  const path = `/platform/v1/hosts/${from}/drain`;
  // Those of earlier tests do not count.
  await gateway.db.update(projects).set({ status: 'failed' }).where(eq(projects.hostId, from));
  await gateway.db.update(projects).set({ status: 'creating' }).where(eq(projects.id, projectId));
  await gateway.platform.post(path, {});
  const waits = async () =>
    (await gateway.platform.get<{ moving: unknown; waiting: { project_id: string; code: string }[] }>(path))
      .body;
  await eventually(async () =>
    expect(await waits()).toMatchObject({
      moving: null,
      waiting: expect.arrayContaining([
        expect.objectContaining({ project_id: projectId, code: 'PROJECT_NOT_ACTIVE' }),
      ]),
    }),
  );
  await gateway.db.update(projects).set({ status: 'active' }).where(eq(projects.id, projectId));
  expect(await gateway.platform.patch(`/platform/v1/hosts/${from}`, { draining: true })).toMatchObject({
    status: 200,
    body: { draining: true },
  });
  expect((await gateway.platform.get(path)).status).toBe(404);
  await gateway.platform.patch(`/platform/v1/hosts/${from}`, { draining: false });
});

test('a drain moves one project after another, and lists those that stay', async () => {
  await gateway.db.update(projects).set({ status: 'active' }).where(eq(projects.id, onFrom));
  const source_url = 'postgresql://app:secret@db.example.com:5432/shop';
  await gateway.api.post(`/api/v1/projects/${projectId}/follow`, { source_url });
  const drain = `/platform/v1/hosts/${from}/drain`;
  expect((await gateway.platform.get(drain)).status).toBe(404);
  expect((await gateway.platform.post(drain, {})).status).toBe(202);
  await eventually(async () => {
    // The host of these tests has no inventory, whose comparison begins the next move.
    const { body } = await gateway.platform.post<{ failed: { project_id: string; code: string }[] }>(
      drain,
      {},
    );
    expect(body.failed).toContainEqual(
      expect.objectContaining({ project_id: projectId, code: 'FOLLOW_STATE' }),
    );
    expect(await hostOf(onFrom)).toBe(to);
  });
  expect(await hostOf(projectId)).toBe(from);
  // Nothing else is left: what stays says why.
  const { body } = await gateway.platform.get<{ failed: { project_id: string; message: string }[] }>(drain);
  expect(body.failed.find(({ project_id }) => project_id === projectId)?.message).toMatch(/follow/);
  await gateway.platform.patch(`/platform/v1/hosts/${from}`, { draining: false });
  expect(await gateway.db.select().from(drains)).toEqual([]);
});
