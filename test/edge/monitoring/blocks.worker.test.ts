import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { toBranchResponse } from '../../../edge/branches/branch.ts';
import { projectBranches, projects, users } from '../../../edge/database/schema.ts';
import { toProjectResponse } from '../../../edge/projects/project.ts';
import { projectViews } from '../../../edge/tenancy/project-access.ts';
import type { BlockReason, ProjectBlocks } from '../../../shared/block.ts';
import { eventually } from '../../support/eventually.ts';
import { type MeasuredProject, measuredProject } from '../../support/host/measured-project.ts';
import { type MonitorGateway, startMonitorGateway } from '../../support/worker/monitor-gateway.ts';

let gateway: MonitorGateway;
let project: MeasuredProject;
let main: string;
let observations: number;

beforeAll(async () => {
  gateway = await startMonitorGateway();
});
afterAll(() => gateway?.stop());
beforeEach(async () => {
  project = await measuredProject(gateway);
  main = await project.branch('main');
  observations = 0;
});

const NOW = Date.now();
const inMinutes = (minutes: number) => new Date(NOW + minutes * 60_000).toISOString();

/** The next observation: [branch, reason, minutes until its end]. */
const observed = (...blocks: [branchId: string, reason: BlockReason, minutes: number][]): ProjectBlocks => {
  observations += 1;
  return {
    project_id: project.id,
    observed_at: new Date(NOW + observations).toISOString(),
    blocks: blocks.map(([branch_id, reason, minutes]) => ({ branch_id, reason, until: inMinutes(minutes) })),
  };
};
const record = (...blocks: Parameters<typeof observed>) => project.recordBlocks(observed(...blocks));

async function branchRecord(branchId: string) {
  const [row] = await project.db.select().from(projectBranches).where(eq(projectBranches.id, branchId));
  if (!row) throw new Error('the branch is gone');
  const { blocked, connections_blocked_until } = toBranchResponse(row);
  return { blocked, connections_blocked_until };
}

async function projectBlocked() {
  const [view] = await projectViews(project.db).where(eq(projects.id, project.id));
  return view && toProjectResponse(view).blocked;
}

const audited = async () => (await project.audited()).map(({ name, metadata }) => [name, metadata.reason]);
const mails = () => gateway.mails.posted.filter(({ body }) => body.text.includes(project.id));

describe('the records', () => {
  test('show the block that lasts longest, and connections blocked by attempts apart', async () => {
    const other = await project.branch('other');
    expect(await projectBlocked()).toBeNull();
    await record([main, 'locks', 2], [main, 'disk', 5], [main, 'attempts', 9], [other, 'connections', 7]);
    expect(await branchRecord(main)).toEqual({
      blocked: { reason: 'disk', until: inMinutes(5) },
      connections_blocked_until: inMinutes(9),
    });
    expect(await branchRecord(other)).toEqual({
      blocked: { reason: 'connections', until: inMinutes(7) },
      connections_blocked_until: null,
    });
    expect(await projectBlocked()).toEqual({ reason: 'connections', until: inMinutes(7) });
    await project.setStatus(other, 'deleted');
    expect(await projectBlocked()).toEqual({ reason: 'disk', until: inMinutes(5) });
  });

  test('show nothing after the end of a block, also without a notification', async () => {
    await record([main, 'disk', -1], [main, 'attempts', -1]);
    expect(await branchRecord(main)).toEqual({ blocked: null, connections_blocked_until: null });
    expect(await projectBlocked()).toBeNull();
  });

  test("ignore older observations, other hosts, and other projects' branches", async () => {
    const foreign = await measuredProject(gateway);
    const foreignMain = await foreign.branch('main');
    const older = observed();
    await record([main, 'disk', 5], [foreignMain, 'disk', 5]);
    await project.recordBlocks(older);
    await project.recordBlocks(observed(), crypto.randomUUID());
    expect(await branchRecord(main)).toMatchObject({ blocked: { reason: 'disk' } });
    expect(await branchRecord(foreignMain)).toMatchObject({ blocked: null });
    expect(await audited()).toEqual([['branch.blocked', 'disk']]);
  });

  test('follow a host whose clock was ahead and has been corrected', async () => {
    await project.recordBlocks({ ...observed([main, 'disk', 70]), observed_at: inMinutes(60) });
    expect(await branchRecord(main)).toMatchObject({ blocked: { reason: 'disk' } });
    await record();
    expect(await branchRecord(main)).toMatchObject({ blocked: null });
    await record([main, 'locks', 5]);
    expect(await branchRecord(main)).toMatchObject({ blocked: { reason: 'locks' } });
  });

  test('ignore an older one of a clock that is ahead, which arrives late', async () => {
    await project.recordBlocks({ ...observed([main, 'disk', 70]), observed_at: inMinutes(60) });
    await project.recordBlocks({ ...observed(), observed_at: inMinutes(59) });
    expect(await branchRecord(main)).toMatchObject({ blocked: { reason: 'disk' } });
    await project.recordBlocks({ ...observed(), observed_at: inMinutes(30) });
    expect(await branchRecord(main)).toMatchObject({ blocked: null });
  });
});

test('each block is audited once, by nobody, and once more when it has ended', async () => {
  await record([main, 'disk', 1]);
  await record([main, 'disk', 2], [main, 'locks', 9]);
  await record([main, 'disk', 3]);
  expect(await audited()).toEqual([
    ['branch.blocked', 'disk'],
    ['branch.blocked', 'locks'],
    ['branch.unblocked', 'locks'],
  ]);
  const [first] = await project.audited();
  const metadata = { reason: 'disk', until: inMinutes(1) };
  expect(first).toEqual({ name: 'branch.blocked', actorId: null, tenantId: 'acme', metadata });
});

test('a block that is there again after its end is a new one', async () => {
  await record([main, 'disk', -1]);
  await record([main, 'disk', 5]);
  expect(await audited()).toEqual([
    ['branch.blocked', 'disk'],
    ['branch.blocked', 'disk'],
  ]);
});

describe('mails', () => {
  const recipients = () => mails().map(({ body }) => body.to);
  const sent = (...expected: string[]) =>
    eventually(async () => {
      expect(recipients().sort()).toEqual(expected.sort());
      expect((await project.inspect()).kept.outbox).toBeUndefined();
    });

  test('go to the owner and the operator, once an hour for each branch and reason', async () => {
    await record([main, 'locks', 5], [main, 'transaction_ids', 5], [main, 'attempts', 5]);
    expect(mails()).toEqual([]);
    for (let minutes = 1; minutes < 4; minutes++) await record([main, 'disk', minutes]);
    await sent('ada@example.com', 'team@example.com');
    expect(mails()[0]?.body).toMatchObject({
      subject: 'Branch blocked (disk): main of Web shop',
      text: expect.stringContaining(`accepts no connections until ${inMinutes(1)}`),
    });
    await record([main, 'disk', 4], [main, 'connections', 4]);
    await sent('ada@example.com', 'team@example.com', 'ada@example.com', 'team@example.com');
  });

  test('do not go to a user who has left the tenant', async () => {
    const { createdBy } = await project.row();
    await project.db.update(users).set({ tenantId: 'other' }).where(eq(users.id, createdBy));
    await record([main, 'disk', 5]);
    await sent('team@example.com');
  });

  test.each([
    ['before the block was recorded', false, [['branch.blocked', 'disk']]],
    ['after it was recorded', true, []],
  ])('and the record are made up for after a crash %s', async (_, isRecorded, events) => {
    const interrupted = observed([main, 'disk', 5]);
    await project.interruptBlocks(interrupted);
    if (isRecorded) {
      const [{ branch_id: _id, ...block } = { branch_id: '', reason: 'disk', until: '' }] =
        interrupted.blocks;
      await project.db
        .update(projectBranches)
        .set({ blocks: [block as never] })
        .where(eq(projectBranches.id, main));
      const blocksObservedAt = new Date(interrupted.observed_at);
      await project.db.update(projects).set({ blocksObservedAt }).where(eq(projects.id, project.id));
    }
    await project.ring();
    await sent('ada@example.com', 'team@example.com');
    await project.ring();
    expect(await branchRecord(main)).toMatchObject({ blocked: { reason: 'disk' } });
    expect(await audited()).toEqual(events);
    expect((await project.inspect()).kept).not.toHaveProperty('pending_blocks');
    expect(mails()).toHaveLength(2);
  });
});
