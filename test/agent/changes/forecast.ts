import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { LockForecast, readForecast } from '../../../agent/changes/forecast.ts';
import { connect, type HostWithProject } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

/** A transaction of `holds` milliseconds that holds a table, at random moments, `share` of the time. */
interface Workload {
  table: string;
  holds: number;
  share: number;
}

const WORKLOADS: readonly Workload[] = [0.3, 0.6, 0.9].flatMap((share, row) =>
  [400, 700, 1_000, 1_500, 2_000, 3_000, 4_000, 5_000, 6_000, 8_000].map((holds, column) => ({
    table: `work_${row}_${column}`,
    holds,
    share,
  })),
);
const SAMPLED_MS = 150_000;
/** PostgreSQL looks for a free lock only when the holder ends; the rest is the network. */
const SLACK_MS = 250;

export function describeForecast(stage: () => HostWithProject): void {
  const owner = () => connect(stage().servers.host, 'direct', stage().main, 'owner');
  const host = () => stage().servers.host;

  async function lockOf(table: string, mode = 'AccessExclusiveLock') {
    const session = await owner();
    const { rows } = await session.query<{ oid: string }>('SELECT $1::regclass::oid::text AS oid', [table]);
    await session.end();
    return { oid: rows[0]?.oid ?? '', schema: 'public', name: table, mode };
  }

  describe('the forecast', () => {
    test('says for how long and for whom a lock would have waited, by its mode', async () => {
      const forecast = new LockForecast(host().postgres, () => {});
      const setUp = await owner();
      await setUp.query('CREATE TABLE seen (id int); CREATE TABLE unseen (id int)');
      const reader = await owner();
      await reader.query(`SET application_name = 'report_daily<b>'; BEGIN; SELECT FROM seen`);
      for (let n = 0; n < 5; n += 1) {
        await forecast.sample();
        await sleep(200);
      }
      await reader.query('COMMIT');
      await forecast.sample();
      await forecast.store();
      const [all, writers, other] = await Promise.all([
        lockOf('seen'),
        lockOf('seen', 'ShareLock'),
        lockOf('unseen'),
      ]);
      const read = await readForecast(host().postgres, stage().project.id, [all, writers, other]);
      expect(read).toHaveLength(3);
      const [seen, ...others] = read;
      expect(seen).toMatchObject({
        name: 'seen',
        mode: 'AccessExclusiveLock',
        behind: ['report_daily<b>'],
        waiting_sessions: 1,
        rests_on_days: 1,
      });
      expect(seen?.wait_ms.p95).toBeGreaterThan(800);
      expect(seen?.wait_ms.p95).toBeLessThan(4_000);
      // A reader does not block what blocks writers alone.
      for (const { wait_ms, behind } of others) expect([wait_ms, behind]).toEqual([{ p50: 0, p95: 0 }, []]);
      // The next process adds its samples.
      const next = new LockForecast(host().postgres, () => {});
      await next.sample();
      await next.store();
      const [again] = await readForecast(host().postgres, stage().project.id, [all]);
      expect(again?.behind).toEqual(['report_daily<b>']);
      // Names of sessions are a tenant's choice, so 20 of a table and an hour are kept.
      await host().postgres.query(
        `UPDATE lock_wait SET names = (SELECT jsonb_object_agg('name ' || n, n) FROM generate_series(1, 30) AS n)
         WHERE relation = $1`,
        [all.oid],
      );
      await reader.query(`SET application_name = 'late'; BEGIN; SELECT FROM seen`);
      await next.sample();
      await reader.query('COMMIT');
      await next.sample();
      await next.store();
      const { rows: named } = await host().postgres.query<{ n: number }>(
        `SELECT (SELECT count(*)::int FROM jsonb_object_keys(names)) AS n FROM lock_wait
         WHERE relation = $1 AND NOT writers`,
        [all.oid],
      );
      expect(named.map(({ n }) => n)).toContain(20);
      await Promise.all([setUp.end(), reader.end()]);
    });

    test('keeps the longest waits of a project within its bounds', async () => {
      const { id } = stage().project;
      await host().postgres.query(
        `INSERT INTO lock_wait (project_id, relation, writers, hour, waits, sessions, names)
         SELECT $1, 20000 + n, false, date_trunc('hour', now()), array_fill(1::smallint, ARRAY[1 + n % 50]), 1, '{}'
         FROM generate_series(1, 5000) AS n`,
        [id],
      );
      const forecast = new LockForecast(host().postgres, () => {});
      const session = await owner();
      await session.query('CREATE TABLE trimmed (id int); BEGIN; LOCK TABLE trimmed');
      await forecast.sample();
      await forecast.store();
      await session.end();
      const { rows } = await host().postgres.query<{ tables: string; bytes: string; shortest: number }>(
        `SELECT count(DISTINCT relation) AS tables, sum(pg_column_size(lock_wait)) AS bytes, min(cardinality(waits)) AS shortest
         FROM lock_wait WHERE project_id = $1`,
        [id],
      );
      expect(Number(rows[0]?.tables)).toBeLessThanOrEqual(2_000);
      expect(Number(rows[0]?.bytes)).toBeLessThanOrEqual(256 * 1024);
      expect(rows[0]?.shortest).toBeGreaterThan(20);
      await host().postgres.query('DELETE FROM lock_wait WHERE relation > 20000 AND project_id = $1', [id]);
    });

    test.runIf(IS_NIGHTLY)(
      `of ${WORKLOADS.length} workloads, the wait that then happens is within the range for 27`,
      async () => {
        const setUp = await owner();
        for (const { table } of WORKLOADS) await setUp.query(`CREATE TABLE ${table} (id int)`);
        const locks = [];
        for (const { table } of WORKLOADS) locks.push(await lockOf(table));
        let isOver = false;
        const working = WORKLOADS.map(async ({ table, holds, share }) => {
          const session = await owner();
          await session.query(`SET application_name = '${table}'`);
          while (!isOver) {
            await sleep(Math.random() * 2 * holds * (1 / share - 1));
            await session.query(`BEGIN; SELECT FROM ${table}`);
            await sleep(holds * (0.5 + Math.random()));
            await session.query('COMMIT');
          }
          await session.end();
        });
        const forecast = new LockForecast(host().postgres, () => {});
        const stop = new AbortController();
        const sampling = forecast.run(stop.signal);
        await sleep(SAMPLED_MS);
        stop.abort();
        await sampling;
        await forecast.store();
        const read = (
          await Promise.all(locks.map((lock) => readForecast(host().postgres, stage().project.id, [lock])))
        ).flat();

        const waited: number[] = [];
        const waitFor = async (at: number) => {
          const session = await owner();
          await sleep(Math.random() * 5_000);
          const began = performance.now();
          await session.query(`BEGIN; LOCK TABLE ${WORKLOADS[at]?.table} IN ACCESS EXCLUSIVE MODE`);
          waited[at] = performance.now() - began;
          await session.query('COMMIT');
          await session.end();
        };
        // A database has a limit of connections.
        for (let at = 0; at < WORKLOADS.length; at += 10)
          await Promise.all(Array.from({ length: 10 }, (_, n) => waitFor(at + n)));
        isOver = true;
        await Promise.all(working);
        await setUp.end();
        const outcome = WORKLOADS.map(({ table, holds }, n) => {
          const { wait_ms = { p50: 0, p95: 0 }, behind = [] } = read.find(({ name }) => name === table) ?? {};
          return { table, holds, ...wait_ms, behind: behind.join(), waited: Math.round(waited[n] ?? 0) };
        });
        console.table(outcome);
        expect(outcome.filter(({ table, behind }) => behind !== table)).toEqual([]);
        // No range is so wide that every wait would be within it.
        for (const { p95, holds } of outcome) expect(p95).toBeLessThanOrEqual(1.3 * 1.5 * holds + 1_000);
        const inside = outcome.filter(({ p95, waited: ms }) => ms <= p95 + SLACK_MS);
        expect(inside.length).toBeGreaterThanOrEqual(27);
      },
    );
  });
}
