import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { Meter } from '../../../agent/measurement/meter.ts';
import { readSizes } from '../../../agent/measurement/sizes.ts';
import { inDatabase, type Queryable } from '../../../agent/postgres/connect.ts';
import { repairPrivileges } from '../../../agent/privileges/repair-privileges.ts';
import type { ProjectMeasurement } from '../../../shared/measurement.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  connect,
  makeProject,
  type Port,
  type Project,
  removeProjects,
} from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';
import { branchIn, flush, TestMeter } from '../../support/host/metering.ts';
import { firstByDay } from '../../support/nightly.ts';
import { NOTHING_COUNTED } from '../../support/records/sample-measurement.ts';

export function describeMeter(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;
  let meter: TestMeter;

  beforeAll(async () => {
    ({ servers, project, main } = await makeProject(
      host(),
      'db_shop_prod',
      `CREATE TABLE item (id integer PRIMARY KEY, name text) WITH (autovacuum_enabled = off);
     INSERT INTO item SELECT n, 'item ' || n FROM generate_series(1, 1000) AS n`,
    ));
    // A visit of autovacuum that coincides with a client's session would be counted.
    await servers.query('ALTER SYSTEM SET autovacuum_naptime = 3600');
    await servers.query('SELECT pg_reload_conf()');
    meter = new TestMeter(servers);
  });

  afterAll(async () => {
    await meter?.meter.close();
    await removeProjects(servers);
  });

  const client = (port: Port, branch = main) => connect(servers.host, port, branch, 'read_write');
  const run = (port: Port, sql: string, branch = main) =>
    asClient(servers.host, port, branch, 'read_write', sql);

  /** Replaces the meter by one that continues from the stored state, as a new agent does. */
  async function restartAgent() {
    await meter.meter.close();
    meter = new TestMeter(servers);
  }

  describe('compared with the true values', () => {
    test('the creation and the proof of a branch are not its usage', async () => {
      const branch = await project.create('db_shop_prod_br_fresh', main.database);
      expect(await meter.read(branch)).toMatchObject(NOTHING_COUNTED);
      expect(await meter.read(branch)).toMatchObject({ ...NOTHING_COUNTED, active_connections: 0 });
      await project.drop(branch);
    });

    test.each<Port>(['direct', 'pooled'])('transactions and rows, %s', async (port) => {
      const session = await client(port);
      const workload = async () => {
        for (let id = 2001; id <= 2040; id++) await session.query('INSERT INTO item VALUES ($1)', [id]);
        for (let id = 1; id <= 30; id++)
          await session.query('UPDATE item SET name = $2 WHERE id = $1', [id, port]);
        for (let id = 1; id <= 50; id++) await session.query('SELECT name FROM item WHERE id = $1', [id]);
        for (let round = 1; round <= 7; round++) {
          await session.query('BEGIN');
          await session.query('SELECT name FROM item WHERE id = 1');
          await session.query('ROLLBACK');
        }
        for (let id = 2001; id <= 2040; id++) await session.query('DELETE FROM item WHERE id = $1', [id]);
        await flush(session);
      };
      // A first run fills the session's catalog cache, because reading catalogs fetches rows too.
      await workload();
      const gain = await meter.gainBy(main, workload);
      await session.end();
      const near = (exact: number, value: number) => expect(Math.abs(value - exact)).toBeLessThanOrEqual(1);
      near(40 + 30 + 50 + 40 + 1, gain.transactions_committed);
      near(7, gain.transactions_rolled_back);
      near(40, gain.rows_inserted);
      near(30, gain.rows_updated);
      near(40, gain.rows_deleted);
      near(30 + 50 + 7 + 40, gain.rows_fetched);
      expect(gain.total_connections).toBe(0);
    });

    test('long and short connections on both ports, without those with wrong passwords', async () => {
      const lasting = [await client('direct'), await client('pooled'), await client('pooled')];
      const before = await meter.read(main);
      const wrong = { ...main, passwords: { ...main.passwords, read_write: 'wrong' } };
      const gain = await meter.gainBy(main, async () => {
        for (let n = 0; n < 6; n++) await run('direct', 'SELECT FROM item LIMIT 1');
        for (let n = 0; n < 9; n++) await run('pooled', 'SELECT FROM item LIMIT 1');
        lasting.push(await client('pooled'), await client('direct'));
        for (const port of ['direct', 'pooled'] as const) {
          await expect(run(port, 'SELECT', wrong)).rejects.toThrow();
        }
        // The pooler logs disconnected clients with a delay.
        await eventually(async () => {
          await meter.meter.sample();
          const now = await meter.read(main);
          expect(now.total_connections - before.total_connections).toBe(6 + 9 + 2);
          expect(now.active_connections).toBe(lasting.length);
        });
      });
      expect(gain).toMatchObject({ total_connections: 6 + 9 + 2, active_connections: 2 });
      expect((await meter.read(main)).active_connections).toBe(5);
      await Promise.all(lasting.map((session) => session.end()));
      await eventually(async () => expect((await meter.read(main)).active_connections).toBe(0));
      expect((await meter.read(main)).total_connections - before.total_connections).toBe(6 + 9 + 2);
    });

    test('the work of autovacuum without clients is not counted', async () => {
      await eventually(async () => expect((await meter.read(main)).active_connections).toBe(0));
      const visits = async () =>
        Number(
          (
            await servers.query<{ n: string }>(
              "SELECT xact_commit AS n FROM pg_stat_database WHERE datname = 'db_shop_prod'",
            )
          )[0]?.n,
        );
      const gain = await meter.gainBy(main, async () => {
        const before = await visits();
        await servers.query('ALTER SYSTEM SET autovacuum_naptime = 1');
        await servers.query('SELECT pg_reload_conf()');
        await eventually(async () => expect(await visits()).toBeGreaterThan(before + 2));
      });
      await servers.query('ALTER SYSTEM SET autovacuum_naptime = 3600');
      await servers.query('SELECT pg_reload_conf()');
      const { cpu_seconds: _, ...uncounted } = NOTHING_COUNTED;
      expect(gain).toMatchObject({ ...uncounted, cache_hit_ratio: null });
      // A tick of the kernel's clock may belong to a session that has just ended.
      expect(gain.cpu_seconds).toBeLessThan(0.015);
    });

    test('the cache hit ratio covers the blocks read since the last measurement', async () => {
      await run('direct', 'SELECT count(*) FROM item');
      expect((await meter.read(main)).cache_hit_ratio).toBeGreaterThan(0.5);
      expect((await meter.read(main)).cache_hit_ratio).toBeNull();
    });
  });

  describe('what clients have not done', () => {
    const UNTOUCHED = { ...NOTHING_COUNTED, active_connections: 0, cache_hit_ratio: null, memory_bytes: 0 };

    test('an untouched branch has used nothing after autovacuum, the pooler and the agent were there', async () => {
      const branch = await project.create('db_shop_prod_br_calm', main.database);
      expect(await meter.read(branch)).toMatchObject(UNTOUCHED);
      // As in the privileges' loop, and enough for several visits of autovacuum and reports of statistics.
      await servers.query('ALTER SYSTEM SET autovacuum_naptime = 1');
      await servers.query('SELECT pg_reload_conf()');
      const pooledSession =
        "FROM pg_stat_activity WHERE datname = $1 AND application_name <> 'branchgate-agent'";
      expect(await servers.query(`SELECT ${pooledSession}`, [branch.database])).not.toEqual([]);
      await repairPrivileges(servers.host, branch);
      await servers.query(`SELECT pg_terminate_backend(pid, 5000) ${pooledSession}`, [branch.database]);
      const { xact_commit: before } = await statisticsOf(branch);
      await eventually(async () =>
        expect((await statisticsOf(branch)).xact_commit).toBeGreaterThan(before + 2),
      );
      expect((await statisticsOf(branch)).session_time).toBeGreaterThan(0);
      expect(await meter.read(branch)).toMatchObject(UNTOUCHED);
      await repairPrivileges(servers.host, branch);
      expect(await meter.read(branch)).toMatchObject(UNTOUCHED);
      await restartAgent();
      expect(await meter.read(branch)).toMatchObject(UNTOUCHED);
      await servers.query('ALTER SYSTEM SET autovacuum_naptime = 3600');
      await servers.query('SELECT pg_reload_conf()');
      await project.drop(branch);
    });

    const statisticsOf = async ({ database }: Branch) =>
      (
        await servers.query<{ xact_commit: number; session_time: number }>(
          'SELECT xact_commit::float8, session_time FROM pg_stat_database WHERE datname = $1',
          [database],
        )
      )[0] as { xact_commit: number; session_time: number };

    test('the table browser works for clients, so its rows count', async () => {
      const branch = await project.create('db_shop_prod_br_browsed', main.database);
      await meter.read(branch);
      await new Browser(servers.host, branch).update('item', { column: 'name', id: 1, value: 'browsed' });
      await eventually(async () => expect((await meter.read(branch)).rows_updated).toBe(1));
      await project.drop(branch);
    });
  });

  describe('sessions now', () => {
    test('have private memory, which grows with what they hold, as the stream of the control tool shows', async () => {
      // The tool runs entirely as the servers' user; this process has another group, so the kernel refuses it.
      const stream = await servers.spawnTool('measure', '--stream', '--interval', '1');
      onTestFinished(() => void stream.kill('SIGTERM'));
      let text = '';
      stream.stdout?.on('data', (chunk) => {
        text += chunk;
      });
      const lines = () => text.split('\n').slice(0, -1);
      const memory = async () => {
        // One measurement may have begun before.
        const wanted = lines().length + 2;
        const line = await eventually(async () => {
          expect(lines().length).toBeGreaterThanOrEqual(wanted);
          return lines().at(-1);
        });
        const measurement: ProjectMeasurement = JSON.parse(line ?? '');
        expect(measurement.project_id).toBe(project.id);
        return (
          branchIn({ measurements: [measurement], poolerTrouble: null, sized: 0 }, main).memory_bytes ?? -1
        );
      };
      const session = await client('direct');
      await run('direct', 'SELECT');
      await eventually(async () => expect((await meter.read(main)).total_connections).toBeGreaterThan(0));
      const before = await memory();
      expect(before).toBeGreaterThan(300_000);
      expect(before).toBeLessThan(30_000_000);
      await session.query("SELECT set_config('a.b', repeat('x', 40000000), false)");
      const grown = await memory();
      expect(grown).toBeGreaterThan(before + 35_000_000);
      await session.end();
      await eventually(async () => expect(await memory()).toBeLessThan(grown - 35_000_000));
    });

    test('the longest statement between two measurements is reported, and the next time no more', async () => {
      const session = await client('direct');
      const started = performance.now();
      await Promise.all([session.query('SELECT pg_sleep(2)'), sleep(1_100).then(() => meter.meter.sample())]);
      const elapsed = (performance.now() - started) / 1000;
      const seconds = (await meter.read(main)).longest_query_seconds;
      expect(seconds).toBeGreaterThan(1);
      expect(seconds).toBeLessThan(elapsed);
      expect((await meter.read(main)).longest_query_seconds).toBe(0);
      await session.end();
    });

    test('a client that waits for a connection of the pooler is reported with its wait', async () => {
      expect((await meter.read(main)).connection_wait_seconds).toBe(0);
      const busy = await Promise.all(Array.from({ length: 20 }, () => client('pooled')));
      await Promise.all(busy.map((session) => session.query('BEGIN')));
      const waiting = await client('pooled');
      const waited = waiting.query('SELECT 1');
      await eventually(async () =>
        expect((await meter.read(main)).connection_wait_seconds).toBeGreaterThan(1),
      );
      await Promise.all(busy.map((session) => session.query('ROLLBACK')));
      await waited;
      await Promise.all([...busy, waiting].map((session) => session.end()));
    });

    test("dead rows are read in the hourly session of the branch's owner login", async () => {
      await run('direct', 'DELETE FROM item WHERE id > 1000');
      await asClient(servers.host, 'direct', main, 'owner', 'ANALYZE item');
      const branch = await project.create('db_shop_prod_br_dead', main.database);
      const session = await client('direct', branch);
      // The statistics of a clone begin with nothing; the sizes of its tables are copied.
      await session.query('UPDATE item SET name = name WHERE id <= 500');
      await flush(session);
      await session.end();
      await repairPrivileges(servers.host, branch);
      const measured = new Meter(servers.settings, { stores: false, deadTuples: servers.host.deadTuples });
      const { dead_tuple_ratio } = branchIn(await measured.measure(), branch);
      expect(dead_tuple_ratio).toBeCloseTo(500 / 1500, 1);
      await measured.close();
      await project.drop(branch);
    });
  });

  describe('sizes', () => {
    test('of the others are read when a database is dropped meanwhile', async () => {
      await servers.query('CREATE DATABASE dropped');
      const rows = await servers.query<{ oid: string }>(
        "SELECT oid::text FROM pg_database WHERE datname IN ('db_shop_prod', 'dropped') ORDER BY datname",
      );
      const oids = rows.map(({ oid }) => oid);
      const session = await servers.connect();
      onTestFinished(() => session.end());
      // As the statement sees the databases of its beginning, so does this transaction.
      await session.query('BEGIN ISOLATION LEVEL REPEATABLE READ');
      await session.query('SELECT FROM pg_database');
      await servers.query('DROP DATABASE dropped');
      const afterSavepoint = {
        query: async (sql: string, values: unknown[]) => {
          await session.query('SAVEPOINT before');
          try {
            return await session.query(sql, values);
          } catch (error) {
            await session.query('ROLLBACK TO before');
            throw error;
          }
        },
      } as Queryable;
      expect([...(await readSizes(afterSavepoint, oids)).keys()]).toEqual(oids.slice(0, 1));
    });

    const sizeOf = async (branch: Branch) =>
      Number(
        (await servers.query<{ bytes: string }>('SELECT pg_database_size($1) AS bytes', [branch.database]))[0]
          ?.bytes,
      );

    test('the writes of an open transaction are included in the size', async () => {
      const session = await client('direct');
      await session.query('BEGIN');
      await session.query(
        "INSERT INTO item SELECT n, repeat('x', 500) FROM generate_series(10000, 20000) AS n",
      );
      const grown = await meter.read(main);
      expect(grown.database_size_bytes).toBe(await sizeOf(main));
      expect(grown.database_size_bytes).toBeGreaterThan(5_000_000 + 7_000_000);
      await session.query('ROLLBACK');
      await session.end();
    });

    test('the files of a database are counted', async () => {
      await asClient(
        servers.host,
        'direct',
        main,
        'owner',
        'DO $$ BEGIN FOR n IN 1..50 LOOP EXECUTE format($f$CREATE TABLE many_%s (n integer)$f$, n); END LOOP; END $$',
      );
      const filesOf = async () =>
        (
          await servers.query<{ files: number }>(
            `SELECT count(*)::int AS files FROM pg_database, pg_ls_dir('base/' || pg_database.oid) WHERE datname = $1`,
            [main.database],
          )
        )[0]?.files;
      await eventually(async () => expect((await meter.read(main)).file_count).toBe(await filesOf()));
      await asClient(
        servers.host,
        'direct',
        main,
        'owner',
        'DO $$ BEGIN FOR n IN 1..50 LOOP EXECUTE format($f$DROP TABLE many_%s$f$, n); END LOOP; END $$',
      );
      await eventually(async () => expect((await meter.read(main)).file_count).toBe(await filesOf()));
    });

    test('only changed databases are sized again', async () => {
      const others = [
        await project.create('db_shop_prod_br_a', main.database),
        await project.create('db_shop_prod_br_b', main.database),
      ];
      // The sessions that created them would report at any later time. One database per round is always sized.
      await servers.query(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname ~ '^db_' AND usename ~ '^u_'",
      );
      await eventually(async () => expect((await meter.meter.measure()).sized).toBe(1));
      const moved = others[0] as Branch;
      await run(
        'direct',
        "INSERT INTO item SELECT n, repeat('x', 500) FROM generate_series(10000, 11000) AS n",
        moved,
      );
      const round = await eventually(async () => {
        const measured = await meter.meter.measure();
        expect(branchIn(measured, moved).rows_inserted).toBe(1001);
        return measured;
      });
      expect(round.sized).toBe(2);
      expect(branchIn(round, moved).database_size_bytes).toBe(await sizeOf(moved));
      for (const other of others) await project.drop(other);
    });
  });

  describe('totals survive', () => {
    /** Inserts ten rows and reports the statistics. */
    async function insertTen() {
      const session = await client('direct');
      await session.query(
        'INSERT INTO item SELECT max(id) + n FROM item, generate_series(1, 10) AS n GROUP BY n',
      );
      await flush(session);
      await session.end();
    }
    /** Runs `disaster` between two measurements, with ten rows before the first and ten before the second. */
    async function gainOver(disaster: () => Promise<unknown>) {
      await insertTen();
      const before = await meter.read(main);
      await disaster();
      await insertTen();
      const after = await meter.read(main);
      for (const [name, value] of Object.entries(before)) {
        if (name in NOTHING_COUNTED)
          expect(Number(Reflect.get(after, name)), name).toBeGreaterThanOrEqual(Number(value));
      }
      return after.rows_inserted - before.rows_inserted;
    }

    test('a restart of the agent', async () => {
      expect(await gainOver(restartAgent)).toBe(10);
    });

    test('an absence of the agent, and a client that stayed connected is counted once', async () => {
      const stays = await client('pooled');
      const before = await meter.read(main);
      await meter.meter.close();
      await insertTen();
      meter = new TestMeter(servers);
      const after = await meter.read(main);
      expect(after.rows_inserted - before.rows_inserted).toBe(10);
      expect(after.total_connections - before.total_connections).toBe(1);
      await stays.end();
    });

    test('a reset of the statistics', async () => {
      const reset = () =>
        inDatabase(servers.settings, main.database, (session) => session.query('SELECT pg_stat_reset()'));
      expect(await gainOver(reset)).toBe(10);
    });

    test("an operator's reset of the shared statistics", async () => {
      expect(await gainOver(() => servers.query("SELECT pg_stat_reset_shared('archiver')"))).toBe(10);
    });

    test('a clean restart of PostgreSQL', async () => {
      expect(
        await gainOver(async () => {
          await servers.end('postgres', 'SIGINT');
          await servers.start('postgres');
        }),
      ).toBe(10);
    });

    test('a crash of PostgreSQL, even when the counts afterwards are higher than before', async () => {
      const crash = async () => {
        await servers.end('postgres', 'SIGKILL');
        await servers.start('postgres');
      };
      expect(await gainOver(crash)).toBe(10);
      // The statistics after the second crash equal those after the first.
      expect(await gainOver(crash)).toBe(10);
    });

    test('a killed backend, after which the postmaster resets all statistics', async () => {
      const victim = await client('direct');
      const { rows } = await victim.query('SELECT pg_backend_pid() AS pid');
      const witness = await servers.connect();
      const noticed = new Promise((resolve) => witness.once('end', resolve));
      expect(
        await gainOver(async () => {
          process.kill(rows[0].pid, 'SIGKILL');
          await noticed;
          await eventually(async () => (await servers.connect()).end());
        }),
      ).toBe(10);
    });

    test('until the branch is dropped', async () => {
      const branch = await project.create('db_shop_prod_br_gone', main.database);
      await meter.read(branch);
      await project.drop(branch);
      expect(
        await servers.query('SELECT FROM branch_usage WHERE branch_id = $1', [branch.branch_id]),
      ).toEqual([]);
      const round = await meter.meter.measure();
      expect(() => branchIn(round, branch)).toThrow('was not measured');
    });
  });

  describe('the control tool', () => {
    test('reports the same values as the agent, and stores nothing', async () => {
      const stored = () => servers.query('SELECT * FROM branch_usage');
      await eventually(async () => expect((await meter.read(main)).cache_hit_ratio).toBeNull());
      const expected = await meter.read(main);
      const before = await stored();
      const run = await servers.tool('measure', '--json');
      expect(run.exitCode).toBe(0);
      const round = { ...JSON.parse(run.stdout), poolerTrouble: null, sized: 0 };
      expect(branchIn(round, main)).toMatchObject({ ...expected, cpu_seconds: expect.any(Number) });
      expect(await stored()).toEqual(before);
      expect((await servers.tool('measure')).stdout).toContain(main.branch_id);
    });

    test.each(firstByDay(1, ['1.5', '0', 'soon']))('rejects an interval of %s', async (seconds) => {
      expect((await servers.tool('measure', '--stream', '--interval', seconds)).exitCode).toBe(2);
    });
  });

  test("no session of a meter enters a tenant's database", async () => {
    const by = new Meter(servers.settings, { stores: false });
    await by.measure();
    const rows = await servers.query<{ datname: string }>(
      "SELECT DISTINCT datname FROM pg_stat_activity WHERE application_name = 'branchgate-agent'",
    );
    expect(rows).toEqual([{ datname: 'branchgate' }]);
    await by.close();
  });
}
