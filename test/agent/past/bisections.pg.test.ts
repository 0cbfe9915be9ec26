import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readdirSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, test, vi } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { pastFolders } from '../../../agent/past/folders.ts';
import { recoverDatabase } from '../../../agent/past/recover.ts';
import { loadLoginName } from '../../../agent/transfer/load-database.ts';
import { Random } from '../../simulation/random.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, Project } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { mountXfs, type XfsMount, xfsHindrance } from '../../support/stack/xfs.ts';

/**
 * Bisections of a real database: a day of many transactions, which takes seconds here. It has pauses, and a neighbour that
 * commits too. Some of the transactions are wrong.
 */

const DISK_BYTES = 8 * 2 ** 30;
const TRANSACTIONS = 200_000;
const OF_NEIGHBOUR = 20_000;
const PLANTED = 50;
const CORRUPTIONS = Array.from({ length: PLANTED }, (_, n) => n + 1);
const PROBES_MAX = Math.log2(TRANSACTIONS) + 3;

/** A wrong transaction is noted in the next one: its commit is after `ended`, and before `next` begins. */
const SCHEMA = `
  create table account (id int primary key, balance int not null);
  insert into account select n, 0 from generate_series(0, 999) n;
  create table wrong (n int);
  create table planted (n int, ended timestamptz, next timestamptz);
  create procedure day(transactions int, corruptions int[]) language plpgsql as $$
    declare
      corrupted int := 0;
      written timestamptz;
    begin
      for i in 1..transactions loop
        if written is not null then insert into planted values (corrupted, written, clock_timestamp()); end if;
        written := null;
        update account set balance = balance + 1 where id = i % 1000;
        if i = any (corruptions) then
          corrupted := corrupted + 1;
          insert into wrong values (corrupted);
          written := clock_timestamp();
        end if;
        commit;
        if i % (transactions / 8) = 0 then perform pg_sleep(0.3); end if;
      end loop;
    end $$`;

let disk: XfsMount | null = null;
let servers: TestHost;
let project: Project;
let main: Branch;
/** Times before and after the day. */
let good: string;
let bad: string;
/** Bounds of the time of each wrong commit, from 1. */
let planted: Map<number, { ended: string; next: string }>;

const asMoment = (time: string) => `to_char(${time} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`;

async function now(): Promise<string> {
  const [row] = await servers.query<{ at: string }>(`select ${asMoment('clock_timestamp()')} as at`);
  return row?.at ?? '';
}

describe.runIf(IS_NIGHTLY)('a bisection of a day of many transactions', () => {
  beforeAll(async () => {
    disk = xfsHindrance() === null ? mountXfs(DISK_BYTES) : null;
    const settings = { RECOVERY_WINDOW_HOURS: '24' };
    servers = await startHost({ settings, ...(disk && { dataDir: join(disk.folder, 'data') }) });
    project = new Project(servers.host);
    main = await project.create('db_bisected_prod', null);
    const neighbour = await new Project(servers.host).create('db_neighbour_prod', null);
    const run = <Row extends pg.QueryResultRow>(branch: Branch, sql: string) =>
      asClient<Row>(servers.host, 'direct', branch, 'owner', sql);
    for (const branch of [main, neighbour]) await run(branch, SCHEMA);
    await servers.host.past.copyBase({ fast: true });
    const random = new Random('planted');
    const corruptions = new Set<number>();
    while (corruptions.size < PLANTED) corruptions.add(random.int(1, TRANSACTIONS - 1));
    good = await now();
    await Promise.all([
      run(main, `call day(${TRANSACTIONS}, '{${[...corruptions]}}')`),
      run(neighbour, `call day(${OF_NEIGHBOUR}, '{}')`),
    ]);
    bad = await now();
    const noted = await run<{ n: number; ended: string; next: string }>(
      main,
      `select n, ${asMoment('ended')} as ended, ${asMoment('next')} as next from planted`,
    );
    planted = new Map(noted.map(({ n, ended, next }) => [n, { ended, next }]));
    assert.equal(planted.size, PLANTED);
  });

  afterAll(async () => {
    await servers?.stop();
    disk?.remove();
  });

  /**
   * Recovers a probe up to where the database could be copied, and ends there: the copy says nothing about the search.
   * @returns the wrong transactions that are in it
   */
  async function recoverProbe(at: string, bisection_id: string): Promise<Set<number>> {
    const { project_id, branch_id, database } = main;
    const ids = { job_id: randomUUID(), snapshot_id: randomUUID(), project_id, branch_id, bisection_id };
    const ended = new Error('the probe is read');
    const wrong = new Set<number>();
    const recovering = recoverDatabase(
      servers.host,
      { ...ids, at, room_bytes: 2 ** 30, jobs: 1 },
      undefined,
      async (step, folder) => {
        if (step !== 'opened') return;
        const host = readlinkSync(join(folder, 'sockets'));
        const session = new pg.Client({ host, port: 5432, user: loadLoginName(ids.job_id), database });
        await session.connect();
        const { rows } = await session.query<{ n: number }>('select n from wrong');
        await session.end();
        for (const { n } of rows) wrong.add(n);
        throw ended;
      },
    );
    await assert.rejects(recovering, ended);
    return wrong;
  }

  /** What the probe of a time has, and which commits are next to it: bisections of one day begin with the same probes. */
  const seen = new Map<string, { wrong: Set<number>; beside: Beside }>();
  type Beside = Parameters<TestHost['host']['past']['bisections']['recovered']>[1];

  /** Looks for the transaction that was wrong. @returns the time of its commit, and the number of probes */
  async function bisect(n: number): Promise<{ found: string; probes: number }> {
    const { bisections } = servers.host.past;
    const about = { bisection_id: randomUUID(), project_id: main.project_id };
    await runOperation(servers.host, 'bisect.start', { ...about, branch_id: main.branch_id, good, bad });
    let verdict: 'good' | 'bad' | null = null;
    for (let probes = 0; ; probes += 1) {
      const { step } = await runOperation(servers.host, 'bisect.step', { ...about, verdict });
      assert(step);
      if (step.probe === null) {
        await runOperation(servers.host, 'bisect.end', about);
        return { found: step.first_bad ?? '', probes };
      }
      let probe = seen.get(step.probe);
      if (probe) bisections.recovered(about.bisection_id, probe.beside);
      else {
        const said = vi.spyOn(bisections, 'recovered');
        const wrong = await recoverProbe(step.probe, about.bisection_id);
        const beside = said.mock.lastCall?.[1];
        said.mockRestore();
        assert(beside);
        probe = { wrong, beside };
        seen.set(step.probe, probe);
      }
      verdict = probe.wrong.has(n) ? 'bad' : 'good';
      // Others recover between two probes.
      (await servers.host.past.turns.begin('another tenant'))();
    }
  }

  test.each(CORRUPTIONS)('finds each transaction that was wrong: %i', async (n) => {
    const { found, probes } = await bisect(n);
    const { ended = '', next = '' } = planted.get(n) ?? {};
    assert(found >= ended && found <= next, `${n}: ${found} is not from ${ended} to ${next}`);
    assert(probes <= PROBES_MAX, `${n}: ${probes} probes`);
    assert.deepEqual(readdirSync(pastFolders(servers.host.settings).recoveries), []);
  });
});
