import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { readProcessTimes } from '../../../agent/measurement/server-sample.ts';
import { median } from '../../bench/rounds.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  connect,
  makeProject,
  type Project,
  removeProjects,
} from '../../support/host/host-project.ts';
import { branchIn, TestMeter } from '../../support/host/metering.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

/** The median of several rounds counts, because other programs use this machine too. */
const ROUNDS = 3;
/** Samples are late on a busy machine. How exact they are otherwise: `npm run bench -- cpu-accounting`. */
const LASTING_WITHIN = 0.25;
const CONNECT_PER_QUERY_WITHIN = 0.4;

export function describeCpuSeconds(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let lasting: Branch;
  let fleeting: Branch;
  let idle: Branch;
  let meter: TestMeter;
  let postmaster: number;

  beforeAll(async () => {
    ({ servers, project, main: lasting } = await makeProject(host(), 'db_cpu_prod', 'SELECT'));
    const [row] = await servers.query<{ pid: string }>(
      String.raw`SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1) AS pid`,
    );
    postmaster = Number(row?.pid);
  });

  beforeEach(() => {
    meter = new TestMeter(servers);
  });

  afterAll(async () => {
    await removeProjects(servers);
  });

  const cpuOf = (pid: number) => readProcessTimes(pid)?.cpu ?? Number.NaN;
  /** CPU seconds of the server's ended processes. */
  const ended = () => readProcessTimes(postmaster)?.childrenCpu ?? Number.NaN;
  const burn = (rows: number) =>
    `SELECT count(*) FROM generate_series(1, ${rows}) AS n WHERE md5(n::text) = 'x'`;

  async function burnInOneSession(queries: number): Promise<{ truth: number }> {
    const session = await connect(servers.host, 'direct', lasting, 'read_write');
    const { rows } = await session.query('SELECT pg_backend_pid() AS pid');
    for (let n = 0; n < queries; n++) await session.query(burn(150_000));
    const truth = cpuOf(rows[0].pid);
    await session.end();
    return { truth };
  }

  async function burnBySession(queries: number): Promise<void> {
    for (let n = 0; n < queries; n++)
      await asClient(servers.host, 'direct', fleeting, 'read_write', burn(50_000));
  }

  /**
   * CPU seconds that the measurement attributes to the branches for `action`, with the agent's samples in
   * between.
   */
  async function measured<T>(action: () => Promise<T>) {
    const before = await meter.meter.measure();
    const result = await meter.pollDuring(action);
    const after = await meter.meter.measure();
    const cpu = (branch: Branch) =>
      branchIn(after, branch).cpu_seconds - branchIn(before, branch).cpu_seconds;
    return { result, lasting: cpu(lasting), fleeting: cpu(fleeting), idle: cpu(idle) };
  }

  /** The median of the relative deviations from the truth. */
  const deviation = (pairs: { measured: number; truth: number }[]) =>
    median(pairs.map((pair) => Math.abs(pair.measured / pair.truth - 1)));

  test.runIf(IS_NIGHTLY)(
    'two concurrent tenants, one with a long session, one with a session per query',
    async () => {
      fleeting = await project.create('db_cpu_prod_br_fleeting', null);
      idle = await project.create('db_cpu_prod_br_idle', null);
      const forLasting: { measured: number; truth: number }[] = [];
      const forFleeting: { measured: number; truth: number }[] = [];
      for (let round = 0; round < ROUNDS; round++) {
        const endedBefore = ended();
        const both = await measured(async () => {
          const [{ truth }] = await Promise.all([burnInOneSession(20), burnBySession(50)]);
          return truth;
        });
        const fleetingTruth = ended() - endedBefore - both.result;
        forLasting.push({ measured: both.lasting, truth: both.result });
        forFleeting.push({ measured: both.fleeting, truth: fleetingTruth });
        expect(both.idle).toBeLessThan(0.1);
      }
      expect(deviation(forLasting)).toBeLessThan(LASTING_WITHIN);
      expect(deviation(forFleeting)).toBeLessThan(CONNECT_PER_QUERY_WITHIN);
      await meter.meter.close();
    },
  );

  test('CPU time used while no agent was running is measured afterwards', async () => {
    const deviations: { measured: number; truth: number }[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      const session = await connect(servers.host, 'direct', lasting, 'read_write');
      const { rows } = await session.query('SELECT pg_backend_pid() AS pid');
      const before = branchIn(await meter.meter.measure(), lasting).cpu_seconds;
      const used = cpuOf(rows[0].pid);
      await meter.meter.close();
      for (let n = 0; n < 3; n++) await session.query(burn(150_000));
      const truth = cpuOf(rows[0].pid) - used;
      meter = new TestMeter(servers);
      deviations.push({
        truth,
        measured: branchIn(await meter.meter.measure(), lasting).cpu_seconds - before,
      });
      await session.end();
    }
    expect(deviation(deviations)).toBeLessThan(LASTING_WITHIN);
    await meter.meter.close();
  });
}
