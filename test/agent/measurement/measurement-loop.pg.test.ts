import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { runMeasurementLoop } from '../../../agent/measurement/measurement-loop.ts';
import { ProjectMeasurement } from '../../../shared/measurement.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type Branch, type Project, startHostWithProject } from '../../support/host/host-project.ts';

let servers: TestHost;
let project: Project;
let main: Branch;
let reports: ProjectMeasurement[];
let events: { event: string; server?: string }[];
let stop: AbortController;
let measuring: Promise<void>;

beforeAll(async () => {
  ({ servers, project, main } = await startHostWithProject('db_tick_prod', 'SELECT'));
  reports = [];
  events = [];
  stop = new AbortController();
  measuring = runMeasurementLoop({
    settings: { ...servers.settings, MEASURE_INTERVAL_SECONDS: 1 },
    log: (event, fields) => events.push({ event, ...fields }),
    report: (measurement) => reports.push(measurement),
    signal: stop.signal,
  });
});

afterAll(async () => {
  stop?.abort();
  await measuring;
  await servers?.stop();
});

/** Another report comes, from now on. */
async function nextReport(): Promise<ProjectMeasurement> {
  const { length } = reports;
  return eventually(async () => {
    expect(reports.length).toBeGreaterThan(length);
    return reports.at(-1) as ProjectMeasurement;
  });
}

const told = (event: string, server: string) =>
  eventually(async () => expect(events).toContainEqual(expect.objectContaining({ event, server })));

test('every interval one message a project, of the form that crosses the link', async () => {
  const other = await project.create('db_tick_prod_br_other', main.database);
  await nextReport();
  const report = await nextReport();
  expect(ProjectMeasurement.parse(report)).toEqual(report);
  expect(report.project_id).toBe(project.id);
  expect(report.branches.map(({ branch_id }) => branch_id).toSorted()).toEqual(
    [main.branch_id, other.branch_id].toSorted(),
  );
  const moments = reports.map(({ observed_at }) => observed_at);
  expect(new Set(moments).size).toBe(moments.length);
});

test('without the pooler all but its clients is measured', async () => {
  await servers.end('pooler', 'SIGINT');
  await told('measurement.failed', 'PgBouncer');
  expect((await nextReport()).branches[0]?.database_size_bytes).toBeGreaterThan(1_000_000);
  await servers.start('pooler');
  await told('measurement.resumed', 'PgBouncer');
});

test('without PostgreSQL nothing is, which is told once, and it goes on by itself', async () => {
  await servers.end('postgres', 'SIGKILL');
  await told('measurement.failed', 'PostgreSQL');
  await servers.start('postgres');
  await told('measurement.resumed', 'PostgreSQL');
  await nextReport();
  expect(
    events.filter(({ event, server }) => event === 'measurement.failed' && server === 'PostgreSQL').length,
  ).toBeLessThan(4);
});

test('a statement that hangs ends, and the next measurement is made', async () => {
  const locker = await servers.connect();
  await locker.query('BEGIN; LOCK TABLE branch_usage');
  await eventually(async () =>
    expect(events.at(-1)).toMatchObject({
      event: 'measurement.failed',
      reason: expect.stringContaining('timeout'),
    }),
  );
  await locker.query('ROLLBACK');
  await locker.end();
  await nextReport();
});

test('a measurement that fails again and again, while its looks do not, is told once', async () => {
  await servers.query('ALTER TABLE branch_usage RENAME TO elsewhere');
  const told: string[] = [];
  const stopping = new AbortController();
  const failing = runMeasurementLoop({
    settings: { ...servers.settings, MEASURE_INTERVAL_SECONDS: 2 },
    log: (event) => told.push(event),
    report: () => {},
    signal: stopping.signal,
  });
  await sleep(5_000);
  stopping.abort();
  await failing;
  await servers.query('ALTER TABLE elsewhere RENAME TO branch_usage');
  expect(told).toEqual(['measurement.failed']);
});
