import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../support/api.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { watchGrowth } from '../support/neighbours/growth.ts';
import { TIMES_IDLE } from '../support/neighbours/stage.ts';
import { TRANSACTION_WITHIN_MS, Victim } from '../support/neighbours/victim.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { runAt, TwoHosts } from '../support/stack/two-hosts.ts';

/**
 * The project of a hostile tenant moves to the host of a victim. What its schema runs there, while rows are copied or
 * applied, is bounded as the table of processes says, and the victim notices nothing.
 */

const TEMP_FILE_LIMIT_MB = 100;
const MB = 2 ** 20;
const IDLE_MS = 10_000;

let two: TwoHosts;
let target: string;
let origin: string;
let victim: Victim;
let postgres: pg.Client;

const setDraining = async (host: string, draining: boolean) =>
  expect((await two.platform.patch(`/platform/v1/hosts/${host}`, { draining })).status).toBe(200);

/** Runs `body` where the session is one of the target: it copies rows, or applies changes. */
const hostile = (place: string, body: string) => `
  create table junk (id bigint generated always as identity primary key, n int);
  create function burn() returns void language plpgsql as $burn$ begin
    for i in 1..10000000 loop
      begin insert into public.junk (n) values (1); raise division_by_zero; exception when others then end;
      if i % 100 = 0 then perform pg_sleep(0.005); end if;
    end loop;
  end $burn$;
  create function evil(n int) returns boolean language plpgsql as $evil$ begin
    if n > 0 and ${place} then ${body} end if; return true;
  end $evil$;
  -- A table without a key would have main copied as the other branches are, and not followed.
  create table checked (n int primary key check (evil(n)))`;

const COPIES = "current_database() ~ '^bgload_'";
/** A worker of a subscription. */
const APPLIES =
  "current_setting('session_replication_role') = 'replica' and current_database() !~ '^bgload_'";

const LOCKS = 'perform pg_advisory_lock(i) from generate_series(1, 500000) as i; perform pg_sleep(600);';
const IDS = 'perform public.burn();';
const FILES = `perform set_config('work_mem', '64kB', false), count(*)
  from (select i from generate_series(1, 1000000000) as i order by -i) as sorted;`;

/** Writes rows in one session, which the move ends. */
async function writeUntil(url: string, isOver: () => boolean): Promise<void> {
  for (let n = 1; !isOver(); n += 1) {
    await runAt(
      url,
      `do $$ begin for i in 1..100 loop
         insert into checked values (${n} * 1000 + i); commit; perform pg_sleep(0.02);
       end loop; end $$`,
    ).catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

describe.runIf(IS_NIGHTLY)('a hostile project that moves to the host of a victim', () => {
  beforeAll(async () => {
    two = await TwoHosts.start({
      TEMP_FILE_LIMIT_MB: String(TEMP_FILE_LIMIT_MB),
      TRANSACTION_IDS_PER_SECOND: '500',
    });
    // The first host is the one whose folders the stack knows.
    [target, origin] = two.hosts.map(({ id }) => id) as [string, string];
    await setDraining(origin, true);
    const token = await two.stack.token({ tenant: 'victim', email: 'owner@victim.example' });
    victim = await Victim.start(new Api(two.stack.url, token), ['127.0.0.1/32']);
    expect(await two.hostOf(victim.projectId)).toBe(target);
    await setDraining(origin, false);
    await setDraining(target, true);
    postgres = await connectOnHost(socketsOf(two.stack.state).postgres, 'branchgate');
  });
  afterAll(async () => {
    await victim?.stop();
    await postgres?.end();
    await two?.stack.stop();
  });

  test.each([
    ['takes locks while its rows are copied', COPIES, LOCKS, /takes too many locks/],
    ['takes transaction ids while its rows are copied', COPIES, IDS, /takes too many transaction ids/],
    ['fills temporary files while its rows are copied', COPIES, FILES, /53400/],
    ['takes locks while its changes are applied', APPLIES, LOCKS, /takes too many locks/],
    // The worker begins again after each error, so the changes do not arrive.
    ['fills temporary files while its changes are applied', APPLIES, FILES, /53400|arrive too late/],
  ])(
    'that %s is undone with the reason',
    async (_, place, body, reason) => {
      const token = await two.stack.token({ tenant: 'hostile', email: 'owner@hostile.example' });
      const api = new Api(two.stack.url, token);
      const project = await api.project('Hostile');
      await api.allow(project.id);
      const { direct_url } = await api.credentials(project.id, 'main');
      await runAt(direct_url, hostile(place, body));
      await runAt(direct_url, `insert into checked values (${place === COPIES ? 1 : 0})`);
      // Their copies take a while, in which main is followed.
      for (const name of ['one', 'two', 'three']) await api.branch(project.id, name);
      expect(await two.hostOf(project.id)).toBe(origin);

      const idleFrom = performance.now();
      const idle = await victim.report(idleFrom, idleFrom + IDLE_MS);
      const endGrowth = await watchGrowth(two.stack.state, postgres);
      // The changes that are applied are made while the project moves.
      let isOver = false;
      const writing = place === APPLIES ? writeUntil(direct_url, () => isOver) : Promise.resolve();
      await setDraining(target, false);
      const from = performance.now();
      await two.begin(project.id, target);
      await setDraining(target, true);
      const move = await two.end(project.id);
      isOver = true;
      await writing;
      const during = await victim.report(
        from,
        performance.now(),
        Math.max(TRANSACTION_WITHIN_MS, TIMES_IDLE * idle.slowest),
      );
      const growth = await endGrowth();
      expect(move).toMatchObject({
        state: 'undone',
        job: { status: 'failed', error: { message: expect.stringMatching(reason) } },
      });
      expect(await two.hostOf(project.id)).toBe(origin);
      expect(idle.failures).toEqual({});
      expect(during.failures).toEqual({});
      expect(during.p99).toBeLessThanOrEqual(TIMES_IDLE * idle.p99);
      // A few sessions copy.
      expect(growth['temporary files']).toBeLessThan(6 * TEMP_FILE_LIMIT_MB * MB);
      // The project still works where it was.
      await runAt(direct_url, 'insert into junk (n) values (1)');
      expect((await api.delete(`/api/v1/projects/${project.id}`)).status).toBe(202);
    },
    600_000,
  );
});
