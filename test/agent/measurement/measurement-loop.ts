import { afterAll, beforeAll, expect, test } from 'vitest';
import { runMeasurementLoop } from '../../../agent/measurement/meter.ts';
import { ProjectMeasurement } from '../../../shared/measurement.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type Branch, makeProject, type Project, removeProjects } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

export function describeMeasurementLoop(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;
  let reports: ProjectMeasurement[];
  let events: { event: string; server?: string }[];
  let stop: AbortController;
  let measuring: Promise<void>;

  beforeAll(async () => {
    ({ servers, project, main } = await makeProject(host(), 'db_tick_prod', 'SELECT'));
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
    await removeProjects(servers);
  });

  /** Waits for the next report. */
  async function nextReport(): Promise<ProjectMeasurement> {
    const { length } = reports;
    return eventually(async () => {
      expect(reports.length).toBeGreaterThan(length);
      return reports.at(-1) as ProjectMeasurement;
    });
  }

  const logged = (event: string, server: string) =>
    eventually(async () => expect(events).toContainEqual(expect.objectContaining({ event, server })));

  test('sends one valid notification per project and interval', async () => {
    const other = await project.create('db_tick_prod_br_other', main.database);
    await nextReport();
    const report = await nextReport();
    expect(ProjectMeasurement.parse(report)).toEqual(report);
    expect(report.project_id).toBe(project.id);
    expect(report.branches.map(({ branch_id }) => branch_id).toSorted()).toEqual(
      [main.branch_id, other.branch_id].toSorted(),
    );
    const times = reports.map(({ observed_at }) => observed_at);
    expect(new Set(times).size).toBe(times.length);
  });

  test('without the pooler everything but its clients is measured', async () => {
    await servers.end('pooler', 'SIGINT');
    await logged('measurement.failed', 'PgBouncer');
    expect((await nextReport()).branches[0]?.database_size_bytes).toBeGreaterThan(1_000_000);
    await servers.start('pooler');
    await logged('measurement.resumed', 'PgBouncer');
  });

  test('an outage of PostgreSQL is logged once, and the measurements resume afterwards', async () => {
    await servers.end('postgres', 'SIGKILL');
    await logged('measurement.failed', 'PostgreSQL');
    await servers.start('postgres');
    await logged('measurement.resumed', 'PostgreSQL');
    await nextReport();
    expect(
      events.filter(({ event, server }) => event === 'measurement.failed' && server === 'PostgreSQL').length,
    ).toBeLessThan(4);
  });

  test.runIf(IS_NIGHTLY)('a hanging statement times out, and the next measurement succeeds', async () => {
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

  test('a measurement that fails repeatedly while its samples succeed is logged once', async () => {
    await servers.query('ALTER TABLE branch_usage RENAME TO elsewhere');
    const events: string[] = [];
    let attempts = 0;
    const stopping = new AbortController();
    const failing = runMeasurementLoop({
      settings: { ...servers.settings, MEASURE_INTERVAL_SECONDS: 2 },
      log: (event) => events.push(event),
      report: () => {},
      onBegun: () => {
        attempts += 1;
      },
      signal: stopping.signal,
    });
    // Every other one is a measurement.
    await eventually(async () => expect(attempts).toBeGreaterThan(4));
    stopping.abort();
    await failing;
    await servers.query('ALTER TABLE elsewhere RENAME TO branch_usage');
    expect(events).toEqual(['measurement.failed']);
  });
}
