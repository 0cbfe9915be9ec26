import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { projectBranches, projects } from '../../../edge/database/schema.ts';
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

test.each(['constructor', '__proto__'])('a branch without measurements can be named %s', async (name) => {
  await project.measure({ [main]: 1 });
  const { branchId } = await project.series(name, { start: 0, end: Date.now(), step: 60_000 });
  expect(branchId).toBe(name);
});
