import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { inFollowed } from '../../../agent/transfer/followed-session.ts';
import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import { connect } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import { Follower, STATE, TRANSFER } from '../../support/host/follower.ts';
import { asClient, identity, toolOptions } from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import { NO_SLOW_TABLE, slowTable } from '../../support/source-server.ts';
import { TcpProxy } from '../../support/tcp-proxy.ts';

/** What befalls a branch that follows: agents that are killed, servers and links that are away. */

/** A prepared transaction holds a lock at the source without a session, which a cut-over would end. */
const SETTINGS = `wal_level = logical\nmax_replication_slots = 4\nmax_wal_senders = 4\nmax_prepared_transactions = 2
logical_decoding_work_mem = 64kB\n`;

let follower: Follower;
beforeAll(async () => {
  follower = await Follower.start(undefined, SETTINGS);
});
afterAll(() => follower?.stop());

interface Hold {
  /** Resolves when the agent has come there. */
  held: () => Promise<unknown>;
  release: () => Promise<unknown>;
}

/** Sessions of this host that wait for a lock in a statement like this. Those of a subscription show no statement. */
const waiting = (statement: string) =>
  eventually(async () =>
    expect(
      await follower.servers.query(
        `select from pg_stat_activity where wait_event_type = 'Lock'
         and (query like '%${statement}%' or application_name in ('branchgate-agent', 'branchgate-copy'))`,
      ),
    ).not.toEqual([]),
  );

/** Holds statements of this host that change a table of the catalog, or of the agent. */
async function holdHere(table: string, statement: string, lock = 'in share mode'): Promise<Hold> {
  const holder: pg.Client = await follower.servers.connect();
  await holder.query(`begin; lock table ${table} ${lock}`);
  return {
    held: () => waiting(statement),
    release: () => Promise.allSettled([holder.query('commit'), holder.end()]),
  };
}

/** Holds statements at the source that need a table, or change one of the catalog. */
async function holdAtSource(table: string, lock: string, statement: string): Promise<Hold> {
  await follower.source.run(`begin; lock table ${table} in ${lock} mode; prepare transaction 'held'`);
  return {
    held: () =>
      eventually(async () =>
        expect(
          await follower.source.run(
            `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%${statement}%'`,
          ),
        ).not.toEqual([]),
      ),
    release: () => follower.source.run("rollback prepared 'held'"),
  };
}

async function holdRows(): Promise<Hold> {
  await follower.source.run(slowTable());
  const copying = "select from pg_stat_activity where datname ~ '^bgload_' and wait_event = 'PgSleep'";
  return {
    held: () => eventually(async () => expect(await follower.servers.query(copying)).not.toEqual([])),
    release: () => follower.source.run(NO_SLOW_TABLE),
  };
}

/** Runs an operation in an agent of its own, and kills that where it is held. */
async function killed(words: string[], params: Record<string, unknown>, hold: Hold): Promise<void> {
  const tool = await follower.servers.spawnTool(...words, ...toolOptions(params));
  const ended = once(tool, 'exit');
  try {
    await Promise.race([
      hold.held(),
      ended.then(([code]) => {
        throw new Error(`it ended before, with ${code}`);
      }),
    ]);
    tool.kill('SIGKILL');
    await ended;
  } finally {
    tool.kill('SIGKILL');
    await hold.release();
  }
}

describe('an agent that is killed', () => {
  beforeEach(() => follower.renew());

  test.runIf(IS_NIGHTLY).each([
    ['before the slot', () => holdAtSource('pg_publication', 'share', 'CREATE PUBLICATION')],
    ['while rows are copied', holdRows],
    ['while the copy is closed', () => holdHere('following', 'INSERT INTO following')],
  ] as const)('in a copy, %s: the next one begins again, and nothing is left', async (_, hold) => {
    const params = follower.copyParams();
    await killed(['transfer', 'copy'], params, await hold());
    await follower.underLoad(async () => {
      await follower.copy(params);
      await follower.run('follow.start', follower.startParams());
    });
    await follower.untilLevel();
    await follower.end();
  });

  test.runIf(IS_NIGHTLY)('in an import: the next one begins again, and nothing is left', async () => {
    const params = follower.copyParams({ follow: null });
    await killed(['transfer', 'copy'], params, await holdRows());
    await follower.copy(params);
    expect(await follower.here(STATE)).toEqual(await follower.source.run(STATE));
    await follower.expectNothingLeft();
  });

  test.runIf(IS_NIGHTLY)('in a copy that is cancelled then: nothing is left', async () => {
    const params = follower.copyParams();
    await killed(['transfer', 'copy'], params, await holdRows());
    const { source_url } = params;
    expect(
      await follower.run('follow.stop', { ...follower.ids, ...follower.follow, source_url }),
    ).toMatchObject({ dropped_at_source: true });
    const { job_id, project_id, branch_id } = params;
    await follower.run('reset.cancel', { job_id, project_id, branch_id, snapshot_id: randomUUID() });
    await follower.expectNothingLeft();
  });

  test.runIf(IS_NIGHTLY).each([
    ['pg_subscription', 'CREATE SUBSCRIPTION'],
    ['following', 'UPDATE following'],
    ['pg_authid', 'CREATE ROLE'],
    ['pg_auth_members', 'GRANT'],
  ] as const)('in a start, before %s is changed: the next one finishes it', async (table, statement) => {
    await follower.copy();
    const params = follower.startParams();
    await killed(['follow', 'start'], params, await holdHere(table, statement));
    await follower.underLoad(() => follower.run('follow.start', params));
    await follower.untilLevel();
    await expect(
      asClient(follower.servers.host, 'direct', follower.main, 'owner', 'update counter set n = 0'),
    ).rejects.toThrow(/permission denied|read-only/);
    await follower.end();
  });

  test.runIf(IS_NIGHTLY)(
    'leaves a session: a resumption ends it first, and so does what applies an addition',
    async () => {
      await follower.begin();
      const leave = async () => {
        const ended = inFollowed(follower.servers.host, follower.ids, 'change', (session) =>
          session.query('select pg_sleep(600)'),
        ).then(
          () => 'ended by itself',
          ({ code }) => code,
        );
        const left = "select from pg_stat_activity where wait_event = 'PgSleep' and datname = $1";
        await eventually(async () =>
          expect(await follower.servers.query(left, [follower.main.database])).toHaveLength(1),
        );
        return { ended };
      };
      const change = (sql: string) => follower.source.run(`set role app; alter table counter ${sql}`);
      const added = await leave();
      await change('add note text');
      expect(await added.ended).toBe('57P01');
      await eventually(async () => expect(await follower.here('select note from counter')).toHaveLength(1));
      await change('drop column note');
      await eventually(async () => expect(await follower.status()).toMatchObject({ state: 'stopped' }));
      const resumed = await leave();
      const params = { ...follower.ids, apply_changes: true };
      expect(await follower.run('follow.resume', params)).toMatchObject({ state: 'following' });
      expect(await resumed.ended).toBe('57P01');
      await follower.end();
    },
  );

  const CUT_OVERS: [string, 'again' | 'called off', () => Promise<Hold>][] = [
    ['while the rows are compared', 'again', () => holdAtSource('account', 'access exclusive', '')],
    ['after its last step', 'again', () => holdHere('pg_subscription', 'ALTER SUBSCRIPTION')],
    ['while the rows are compared', 'called off', () => holdAtSource('account', 'access exclusive', '')],
    ['before it begins', 'again', () => holdHere('following', 'SET cutover = ')],
    [
      'before writes are refused',
      'called off',
      () => holdAtSource('pg_db_role_setting', 'share', 'ALTER DATABASE'),
    ],
    ['while the slot is dropped', 'again', () => holdAtSource('pg_publication', 'share', 'DROP PUBLICATION')],
    ['while main is opened', 'again', () => holdHere('pg_auth_members', 'GRANT')],
  ];
  test.each(firstByDay(1, CUT_OVERS))(
    'in a cut-over, %s, which is %s: nothing is lost',
    async (_, then, hold) => {
      await follower.begin();
      for (let n = 0; n < 5; n += 1) await follower.source.run(TRANSFER);
      await follower.untilLevel();
      const cutover = { ...follower.ids, job_id: randomUUID(), writes_refused: false };
      await killed(['follow', 'cutover'], cutover, await hold());
      if (then === 'called off') {
        await follower.run('follow.cancel_cutover', follower.ids);
        expect(await follower.source.run('show default_transaction_read_only')).toEqual([
          { default_transaction_read_only: 'off' },
        ]);
        await follower.source.run(TRANSFER);
        await follower.untilLevel();
      }
      const { cut_over, findings } = await follower.run('follow.cutover', cutover);
      expect([cut_over?.rows, findings]).toEqual([expect.any(Number), []]);
      expect(await follower.here(STATE)).toEqual(await follower.source.run(STATE));
      const main = follower.main;
      const insert = 'insert into transfer (amount) values (1) returning id::int';
      const [last] = await follower.source.run('select last_value::int as last from transfer_id_seq');
      expect(await asClient(follower.servers.host, 'pooled', main, 'read_write', insert)).toEqual([
        { id: Number(last?.last) + 1 },
      ]);
      await follower.source.run(
        'begin read write; alter database shop reset default_transaction_read_only; commit',
      );
      await follower.expectNothingLeft();
    },
  );
});

/** How long a link is away. Milliseconds. */
const AWAY_MS = IS_NIGHTLY ? 60_000 : 4_000;

describe('a branch that follows over a link', () => {
  let proxy: TcpProxy;
  beforeAll(async () => {
    proxy = await TcpProxy.start(follower.source.port);
    await follower.renew();
    await follower.begin({ source_url: follower.source.url({ port: proxy.port }) });
  });
  afterAll(async () => {
    await follower.end();
    proxy.stop();
  });

  test.each(firstByDay(1, ['refusing', 'silent'] as const))(
    'a link to the source that is %s for a time: the lag grows meanwhile, and it continues',
    async (kind) => {
      await follower.underLoad(async () => {
        await eventually(async () => expect((await follower.status()).lag_seconds).not.toBeNull());
        proxy.cut(kind);
        const cutAt = performance.now();
        await sleep(AWAY_MS);
        const away = () => (performance.now() - cutAt) / 1000;
        const least = away();
        const { lag_seconds, lag_bytes, state } = await follower.status();
        const most = away();
        expect([state, lag_bytes]).toEqual(['following', null]);
        // What was under way is received a little later, and the last message before came a little earlier.
        expect(lag_seconds).toBeGreaterThan(least - 1);
        expect(lag_seconds).toBeLessThan(most + 3);
        proxy.mend();
      });
      await follower.untilLevel();
      await eventually(async () => expect(await follower.status()).toMatchObject({ lag_seconds: 0 }));
    },
    AWAY_MS + 300_000,
  );

  test.each(firstByDay(1, ['SIGQUIT', 'SIGINT'] as const))(
    "the host's PostgreSQL is restarted (%s): it continues, also with what it had stopped",
    async (signal) => {
      await follower.underLoad(async () => {
        await follower.servers.end('postgres', signal);
        await follower.servers.start('postgres');
        await follower.source.run(TRANSFER);
      });
      await follower.untilLevel();
    },
  );
});

describe('a branch that follows', () => {
  beforeEach(() => follower.renew());

  test.runIf(IS_NIGHTLY)(
    'a schema problem ends when each change is applied, or is undone at the source',
    async () => {
      await follower.begin();
      const change = (sql: string) => follower.source.run(`set role app; ${sql}`);
      const stopped = () =>
        eventually(async () =>
          expect(await follower.status()).toMatchObject({ state: 'stopped', problem: { code: 'schema' } }),
        );
      const resume = (apply_changes: boolean) =>
        follower.run('follow.resume', { ...follower.ids, apply_changes });
      const widened = 'alter table account alter balance type bigint';
      await change(
        `${widened}; alter table counter drop column n; create type mood as enum ('good', 'bad'); alter table visit add mood mood`,
      );
      await stopped();
      // Nobody else can change it.
      await expect(
        asClient(follower.servers.host, 'direct', follower.main, 'owner', widened),
      ).rejects.toThrow(/must be owner|permission denied|read-only/);
      expect(await resume(false)).toMatchObject({ state: 'stopped', problem: { code: 'schema' } });
      expect(await resume(true)).toMatchObject({ state: 'following', problem: null });
      await change('update account set balance = 5000000000 where id = 1');
      const balance = 'select balance::text from account where id = 1';
      await eventually(async () => expect(await follower.here(balance)).toEqual([{ balance: '5000000000' }]));
      const moods = (values: string, using: string) =>
        `alter type mood rename to old; create type mood as enum (${values}); alter table visit alter mood type mood using ${using}; drop type old`;
      // The values of a renamed column, and those that a function or USING has given the rows there, are in no change.
      for (const [there, back] of firstByDay(1, [
        ['alter table visit rename at to seen', 'alter table visit rename seen to at'],
        [
          'alter table account add made timestamptz default clock_timestamp()',
          'alter table account drop column made',
        ],
        [
          'alter table account alter balance type numeric(20,2) using balance / 100.0',
          'alter table account alter balance type bigint using balance * 100',
        ],
        [moods("'good'", "'good'"), moods("'good', 'bad'", 'mood::text::mood')],
      ] as const)) {
        await change(there);
        await stopped();
        expect(await resume(true)).toMatchObject({
          state: 'stopped',
          problem: { code: 'schema', message: expect.stringContaining('in no change') },
        });
        await change(back);
        expect(await resume(false)).toMatchObject({ state: 'following', problem: null });
      }
      await follower.end();
    },
  );

  test.runIf(IS_NIGHTLY)(
    'a wider type is applied under load, unless USING has computed other values at the source',
    async () => {
      for (let n = 0; n < 30; n += 1) await follower.source.run(TRANSFER);
      await follower.begin();
      const change = async (sql: string) => {
        await follower.source.run(`set role app; alter table ${sql}`);
        await eventually(async () => expect(await follower.status()).toMatchObject({ state: 'stopped' }));
      };
      const resume = () => follower.run('follow.resume', { ...follower.ids, apply_changes: true });
      await change('transfer alter amount type bigint using amount * 100');
      const computed = { code: 'schema', table: '"public"."transfer"' };
      expect(await resume()).toMatchObject({ state: 'stopped', problem: computed });
      await follower.source.run(
        'set role app; alter table transfer alter amount type bigint using amount / 100',
      );
      expect(await resume()).toMatchObject({ state: 'following', problem: null });
      await follower.underLoad(async () => {
        await change('account alter balance type bigint');
        expect(await resume()).toMatchObject({ state: 'following', problem: null });
      });
      await follower.untilLevel();
      await follower.end();
    },
  );

  test.runIf(IS_NIGHTLY)(
    'main is not reset while it follows, and its snapshot is the source at one commit',
    async () => {
      await follower.begin();
      const job_id = randomUUID();
      const reset = { ...identity(follower.main), job_id, snapshot_id: randomUUID() };
      await expect(follower.run('reset.swap', reset)).rejects.toMatchObject({ code: 'INVALID_CALL' });
      await follower.underLoad(async () => {
        for (let n = 0; n < 50; n += 1) {
          const snapshot_id = randomUUID();
          const { project_id, branch_id, database } = follower.ids;
          await follower.run('snapshot.take', {
            project_id,
            branch_id,
            snapshot_id,
            source: database,
            busy_wait: 20_000,
            unless_same_as: null,
          });
          const branch = await follower.project.create(
            `${database}_br_snap_${n}`,
            snapshotDatabaseName(snapshot_id),
          );
          const [state] = await asClient(follower.servers.host, 'direct', branch, 'owner', STATE);
          expect(state).toMatchObject({ sum: 50_000, transfers: state?.counted });
          await follower.project.drop(branch);
          await follower.run('snapshot.drop', { project_id, snapshot_id });
        }
      });
      await follower.untilLevel();
      await follower.end();
    },
  );

  /** For how long a branch stands still. Milliseconds. */
  const STILL_MS = 60_000;

  test.runIf(IS_NIGHTLY)(
    'the lag is the age of what the branch has, also while it catches up and after a restart of the agent',
    async () => {
      // A row each 50 ms, which takes 25 ms here: it catches up about as fast as it fell behind.
      await follower.source.run(`set role app;
      create table beat (id int generated always as identity primary key, at timestamptz not null default clock_timestamp());
      create function takes_time() returns trigger language plpgsql as $f$ begin
        if exists (select from pg_catalog.pg_subscription) then perform pg_catalog.pg_sleep(0.025); end if; return new; end $f$;
      create trigger slow before insert on beat for each row execute function takes_time(); alter table beat enable always trigger slow`);
      await follower.begin();
      const over = new AbortController();
      const writing = (async () => {
        const client = await connect(follower.source.url());
        while (!over.signal.aborted) {
          await client.query('insert into beat default values');
          await sleep(50);
        }
        await client.end();
      })();
      /** Seconds since the source had written the newest row that is here. */
      const age = async () => {
        const [row] = await follower.here(
          'select extract(epoch from clock_timestamp() - max(at))::float8 as age from beat',
        );
        return Number(row?.age);
      };
      const asked: { before: number; lag: number; after: number }[] = [];
      const ask = async () => {
        const before = await age();
        const { lag_seconds } = await follower.status();
        const after = await age();
        asked.push({ before, lag: lag_seconds ?? Number.NaN, after });
      };
      const block = (since: string) =>
        follower.servers.query(
          `update project set write_blocked_since = ${since} where project_id = '${follower.project.id}'`,
        );
      try {
        await eventually(async () => expect(await age()).toBeLessThan(1));
        await block('clock_timestamp()');
        await eventually(async () => expect(await follower.status()).toMatchObject({ state: 'stopped' }));
        await sleep(STILL_MS);
        await ask();
        expect(asked[0]?.lag).toBeGreaterThan(STILL_MS / 1000 - 1);
        // What another process would know.
        await follower.servers.host.lags.store(follower.servers.host.postgres, follower.main.branch_id);
        await follower.stopWatch();
        follower.servers.host.lags.close();
        follower.startWatch();
        await ask();
        await block('null');
        await follower.run('follow.resume', { ...follower.ids, apply_changes: false });
        await eventually(async () => {
          await ask();
          expect(asked.at(-1)?.after).toBeLessThan(1);
        }, 600);
        await ask();
      } finally {
        over.abort();
        await writing;
      }
      // Catching up was met on its way.
      expect(asked.filter(({ lag }) => lag > 1 && lag < STILL_MS / 1000).length).toBeGreaterThan(1);
      for (const { before, lag, after } of asked) {
        expect(lag).toBeGreaterThan(Math.min(before, after) - 1);
        expect(lag).toBeLessThan(Math.max(before, after) + 1);
      }
      await follower.untilLevel();
      await eventually(async () => expect(await follower.status()).toMatchObject({ lag_seconds: 0 }));
      await follower.end();
    },
    STILL_MS + 600_000,
  );

  test.runIf(IS_NIGHTLY)(
    'a publication of the owner of the source: what it leaves out is named, and follows once it is added',
    async () => {
      const { source } = follower;
      await source.run('create publication theirs for table account, counter');
      const follow = { ...follower.follow, publication: 'theirs' };
      const probe = await follower.run('transfer.probe', {
        project_id: follower.project.id,
        source_url: source.url(),
        use: 'follow',
        into: null,
        tables: null,
        publication: 'theirs',
        room_bytes: 2 ** 30,
      });
      expect(probe.findings.filter(({ problem }) => problem === 'not_followed')).toMatchObject([
        { severity: 'warning', message: expect.stringContaining('public.transfer, public.visit') },
      ]);
      await follower.copy(follower.copyParams({ follow }));
      await follower.run('follow.start', { ...follower.startParams(), ...follow });
      const add = (name: string) =>
        source.run(`set role app; create table ${name} (id int primary key); insert into ${name} values (1)`);
      const stopped = (name: string) =>
        eventually(async () => {
          const { state, problem } = await follower.status();
          expect([state, problem]).toMatchObject([
            'stopped',
            { code: 'schema', table: `"public"."${name}"` },
          ]);
          return problem?.statement ?? '';
        });
      const resume = async () =>
        expect(await follower.run('follow.resume', { ...follower.ids, apply_changes: false })).toMatchObject({
          state: 'following',
          problem: null,
        });
      const follows = (name: string) =>
        eventually(async () => expect(await follower.here(`select id from ${name}`)).toEqual([{ id: 1 }]));
      await add('book');
      await source.run(await stopped('book'));
      await resume();
      await follows('book');
      // It stays empty as long as nobody publishes it.
      await add('note');
      const statement = await stopped('note');
      await resume();
      await source.run(statement);
      await resume();
      await follows('note');
      await source.run('drop publication theirs');
      await follower.end();
    },
  );

  test.runIf(IS_NIGHTLY)(
    'limits of the source that are shorter than a copy do not end one that is to follow',
    async () => {
      const limits = ['transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout'];
      await follower.source.run(
        `${limits.map((name) => `alter role app set ${name} = '2s'`).join(';')}; ${slowTable(5)}`,
      );
      try {
        await follower.begin();
      } finally {
        await follower.source.run('alter role app reset all');
      }
      await follower.end();
    },
  );
});
