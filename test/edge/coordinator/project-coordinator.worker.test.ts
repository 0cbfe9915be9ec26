import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { jobs, projectBranches, projects } from '../../../edge/database/schema.ts';
import { eventually } from '../../support/eventually.ts';
import { type MeasuredProject, measuredProject } from '../../support/host/measured-project.ts';
import { type MonitorGateway, startMonitorGateway } from '../../support/worker/monitor-gateway.ts';

let gateway: MonitorGateway;
let project: MeasuredProject;
let main: string;

beforeAll(async () => {
  gateway = await startMonitorGateway();
});
afterAll(() => gateway?.stop());
beforeEach(async () => {
  project = await measuredProject(gateway);
  main = await project.branch('main');
});

/** Milliseconds until the object's alarm. */
const untilAlarm = async () => {
  const { alarm } = await project.inspect();
  return (alarm ?? Number.POSITIVE_INFINITY) - Date.now();
};

test('calls of an unavailable host back off', async () => {
  await project.db.update(projects).set({ accessRevision: 1 }).where(eq(projects.id, project.id));
  await project.wake();
  // The first delay is 2 s; the object checks open jobs every 20 s.
  await eventually(async () => {
    const pause = await untilAlarm();
    expect(pause).toBeGreaterThan(2_500);
    expect(pause).toBeLessThan(10_000);
  });
});

test('an alarm while D1 is unavailable is followed by another one', async () => {
  await project.wake();
  await project.db.update(projectBranches).set({ expiresAt: new Date() }).where(eq(projectBranches.id, main));
  const rename = (from: string, to: string) =>
    gateway.database.prepare(`alter table ${from} rename to ${to}`).run();
  await rename('project_branches', 'elsewhere');
  try {
    await project.ring();
    expect(await untilAlarm()).toBeLessThan(20_000);
  } finally {
    await rename('elsewhere', 'project_branches');
  }
  await eventually(async () => {
    const [branch] = await project.db.select().from(projectBranches).where(eq(projectBranches.id, main));
    expect(branch?.status).toBe('expired');
  });
});

test('the alarm deletes a branch that has been expired for long enough, and is set for the next one', async () => {
  const next = await project.branch('next', 'expired');
  const deletesAt = new Date(Date.now() + 86_400_000);
  const set = (id: string, values: object) =>
    project.db.update(projectBranches).set(values).where(eq(projectBranches.id, id));
  await set(main, { status: 'expired', deletesAt: new Date() });
  await set(next, { deletesAt });
  await project.wake();
  await project.ring();
  const statusOf = async (id: string) =>
    (await project.db.select().from(projectBranches).where(eq(projectBranches.id, id)))[0]?.status;
  expect([await statusOf(main), await statusOf(next)]).toEqual(['deleted', 'expired']);
  expect(await project.db.select().from(jobs).where(eq(jobs.branchId, main))).toMatchObject([
    { kind: 'branch.delete' },
  ]);
  // The job's host is away, so the alarm is for its next attempt; without the job it is for the other branch.
  await project.db.update(jobs).set({ status: 'succeeded' }).where(eq(jobs.branchId, main));
  await eventually(async () => {
    // The guard of the deletion would ring first, 20 s after it. The object forgets the guard with its
    // memory.
    await project.reset();
    await project.ring();
    expect((await project.inspect()).alarm).toBe(deletesAt.getTime());
  });
});

test.each(['constructor', '__proto__'])('a branch without measurements can be named %s', async (name) => {
  await project.measure({ [main]: 1 });
  const { branchId } = await project.series(name, { start: 0, end: Date.now(), step: 60_000 });
  expect(branchId).toBe(name);
});
