import { randomBytes, randomUUID } from 'node:crypto';
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { stepsOf } from '../../../agent/changes/plan.ts';
import { GuardWatch } from '../../../agent/guard/watch-guards.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import type { Pool } from '../../../agent/postgres/connect.ts';
import { bytesOf } from '../../../agent/postgres/file-bytes.ts';
import { databaseKind, PROCESS_KINDS, processKind, type Way } from '../../../agent/postgres/tenant-code.ts';
import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import { eventually } from '../../support/eventually.ts';
import { Follower } from '../../support/host/follower.ts';
import { asClient, type Branch, connect, Project } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { NO_SLOW_TABLE, slowTable } from '../../support/source-server.ts';
import { SteadyClient } from '../../support/steady-client.ts';

/**
 * Code of a tenant in processes without a client: workers of a subscription, autovacuum, a masking and an import. The
 * attacker owns the source, or `main`. A tenant of the same host works and logs in meanwhile.
 */

const TRANSACTION_IDS_PER_SECOND = 500;
const MB = 2 ** 20;

let follower: Follower;
let project: Project;
let own: Branch;
let victim: SteadyClient;
let client: pg.Client;
const stop = new AbortController();
let watching: Promise<void>;
const events: { event: string; [field: string]: unknown }[] = [];

/** Until it resolves, the watchdogs do not get to know any further database of a tenant. */
let isReadable = Promise.resolve();
async function whileUnreadable(action: () => Promise<unknown>): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  isReadable = promise;
  try {
    await action();
  } finally {
    resolve();
  }
}

const withDirectoryHeld = (pool: Pool): Pool =>
  new Proxy(pool, {
    get: (target, property) =>
      property === 'query'
        ? async (text: string, values: unknown[]) => {
            if (text.includes('FROM branch JOIN pg_database')) await isReadable;
            return target.query(text, values);
          }
        : Reflect.get(target, property),
  });

beforeAll(async () => {
  follower = await Follower.start();
  const { host } = follower.servers;
  project = new Project(host);
  const neighbour = await project.create('db_victim_prod', null);
  await asClient(host, 'direct', neighbour, 'owner', 'create table work (n int)');
  own = await new Project(host).create('db_attacker_prod', null);
  const log = (event: string, fields?: Record<string, unknown>) => events.push({ event, ...fields });
  const settings = { ...host.settings, TRANSACTION_IDS_PER_SECOND };
  const watched = { ...host, settings, postgres: withDirectoryHeld(host.postgres) };
  watching = new GuardWatch(watched, log).run(stop.signal);
  client = await connect(host, 'direct', neighbour, 'read_write');
  victim = await SteadyClient.start(
    () => client.query('insert into work values (1)'),
    async (turn) => {
      if (turn % 20 === 0) await asClient(host, 'direct', neighbour, 'read_write', 'select 1');
    },
  );
});
afterAll(async () => {
  try {
    await victim?.end();
    await client?.end();
    expect(victim.failures).toEqual([]);
    expect(
      events.filter(({ event }) => event === 'guard.unknown_process' || event === 'guard.failed'),
    ).toEqual([]);
  } finally {
    stop.abort();
    await watching;
    await follower?.stop();
  }
});

const expectUndisturbed = () => victim.expectUndisturbed();

const stopped = (message: RegExp) =>
  eventually(async () =>
    expect(await follower.status()).toMatchObject({
      state: 'stopped',
      problem: { code: 'apply', message: expect.stringMatching(message) },
    }),
  );

/** What the check of a table of the source runs in the worker here, and nowhere else. */
const check = (body: string) => `
  create function evil(n int) returns boolean language plpgsql as $evil$
  begin
    if current_database() ~ '^db_follow' then ${body} end if;
    return true;
  end $evil$;
  alter function evil owner to app;
  create table checked (n int primary key check (evil(n))); alter table checked owner to app`;

const TAKE_LOCKS = `perform pg_advisory_lock(i) from generate_series(1, 500000) as i; perform pg_sleep(600);`;
/** Ids of subtransactions, so that it is one statement of one transaction. */
const BURN = `
  create table junk (n int);
  create function burn() returns void language plpgsql as $burn$ begin
    for i in 1..10000000 loop
      begin insert into public.junk values (1); raise division_by_zero; exception when others then end;
      if i % 100 = 0 then perform pg_sleep(0.005); end if;
    end loop;
  end $burn$;`;
const TAKE_IDS = 'perform public.burn();';

const logBytes = async () => bytesOf(join(follower.servers.settings.PGDATA_DIR, 'log'));

describe('a worker of a subscription', () => {
  beforeEach(() => follower.renew());

  test('that takes locks is ended, and following stops', async () => {
    await follower.source.run(check(TAKE_LOCKS));
    await follower.begin();
    await follower.source.run('insert into checked values (1)');
    await stopped(/takes too many locks/);
    expectUndisturbed();
    await follower.end();
  });

  test.runIf(IS_NIGHTLY)('that takes transaction ids is ended each time, and begins again', async () => {
    await follower.source.run(`set role app; ${BURN} reset role; ${check(TAKE_IDS)}`);
    await follower.begin();
    await follower.source.run('insert into checked values (1)');
    const { branch_id } = follower.main;
    const ended = () =>
      events.filter(
        ({ event, guard, branch_ids }) =>
          event === 'guard.ended' &&
          guard === 'transaction ids' &&
          (branch_ids as string[]).includes(branch_id),
      );
    await eventually(async () => expect(ended().length).toBeGreaterThan(1), 120);
    expect(events.filter((one) => one.event === 'guard.blocked' && one.branch_id === branch_id)).toEqual([]);
    expect(await follower.status()).toMatchObject({ state: 'following' });
    expectUndisturbed();
    await follower.end();
  });

  test('logs nothing that the source has chosen, and names an error of a change once', async () => {
    await follower.source.run(
      check(`if n = 1 then for i in 1..3000 loop raise log '%', repeat('x', 10000); end loop; end if;
        if n = 2 then raise log 'chosen by the source'; raise check_violation using message = 'no'; end if;`),
    );
    await follower.begin();
    const before = await logBytes();
    await follower.source.run('insert into checked values (1)');
    await eventually(async () => expect(await follower.here('select n from checked')).toEqual([{ n: 1 }]));
    expect((await logBytes()) - before).toBeLessThan(MB);
    await follower.source.run('insert into checked values (2)');
    await stopped(/PostgreSQL refuses a change of public\.checked here: SQLSTATE 23514/);
    const role = `u_${follower.project.id.replaceAll('-', '')}_query`;
    const [row] = await follower.servers.query<{ settings: string[] }>(
      'select rolconfig as settings from pg_roles where rolname = $1',
      [role],
    );
    expect(row?.settings.filter((setting) => /log_min_messages|track_activities/.test(setting))).toEqual([]);
    expectUndisturbed();
    await follower.end();
  });

  test.runIf(IS_NIGHTLY)('that fills the log with the reason of its error is not heard', async () => {
    await follower.source.run(
      check(`for i in 1..100000 loop raise log '%', repeat('x', 10000); end loop;
        raise check_violation using message = 'no';`),
    );
    await follower.begin();
    const before = await logBytes();
    await follower.source.run('insert into checked values (1)');
    await stopped(/writes too much to the log/);
    expect((await logBytes()) - before).toBeLessThan(32 * MB);
    await follower.end();
  });

  test.runIf(IS_NIGHTLY)('keeps no transaction in files, however large it is', async () => {
    await follower.begin();
    const temporary = join(follower.servers.settings.PGDATA_DIR, 'base/pgsql_tmp');
    const kept = () =>
      readdirSync(temporary, { recursive: true }).map(
        (name) => statSync(join(temporary, String(name)), { throwIfNoEntry: false })?.size ?? 0,
      );
    await follower.source.run('set role app; create table wide (n int primary key, text text)');
    await eventually(async () => expect(await follower.here('select from wide')).toEqual([]));
    await follower.source
      .run("alter system set logical_decoding_work_mem = '64kB'; select pg_reload_conf()")
      .catch(() => {});
    let largest = 0;
    const writing = follower.source.run(
      'set role app; insert into wide select n, repeat(md5(n::text), 100) from generate_series(1, 20000) n',
    );
    let isWritten = false;
    writing.finally(() => {
      isWritten = true;
    });
    while (!isWritten) {
      largest = Math.max(largest, ...kept());
      await sleep(50);
    }
    await eventually(async () =>
      expect(await follower.here('select count(*)::int as n from wide')).toEqual([{ n: 20_000 }]),
    );
    expect(largest).toBeLessThan(MB);
    await follower.end();
  });

  test.runIf(IS_NIGHTLY)('continues while the disk is nearly full, if another one takes it', async () => {
    const { settings } = follower.servers;
    const enough = settings.MIN_FREE_DISK_MB;
    await follower.begin();
    settings.MIN_FREE_DISK_MB = 2 ** 30;
    try {
      await sleep(3_000);
      await follower.source.run('update counter set n = n + 1');
      await eventually(async () => expect(await follower.here('select n from counter')).toEqual([{ n: 1 }]));
      expect(await follower.status()).toMatchObject({ state: 'following', problem: null });
    } finally {
      settings.MIN_FREE_DISK_MB = enough;
    }
    await follower.end();
  });
});

describe('a masking', () => {
  const KEY = randomBytes(32).toString('base64');
  const rules = [{ table: 'public.hidden', column: 'v', with: 'hash' }];
  const mask = (of: Branch, snapshot_id = randomUUID()) =>
    runOperation(follower.servers.host, 'snapshot.mask', {
      job_id: randomUUID(),
      project_id: of.project_id,
      branch_id: of.branch_id,
      source: of.database,
      snapshot_id,
      busy_wait: 20_000,
      masking: { rules, unlisted: 'keep', key: KEY },
      keep_tables: [],
      unless_same_as: null,
    });
  /** The expression of an index, which runs for each new row where values are replaced. */
  const indexed = (body: string) => `
    drop table if exists hidden, junk; drop function if exists evil, burn;
    ${BURN}
    create function evil(v text) returns text immutable language plpgsql as $evil$
    begin
      if current_database() ~ '^bgmask_' then ${body} end if;
      return v;
    end $evil$;
    create table hidden (id int primary key, v text); create index on hidden (evil(v));
    insert into hidden values (1, 'a')`;
  const inOwn = (sql: string) => asClient(follower.servers.host, 'direct', own, 'owner', sql);

  test.each([
    ['takes locks', TAKE_LOCKS, /takes too many locks/],
    ['takes transaction ids', TAKE_IDS, /takes too many transaction ids/],
    ['sends a long error', "raise exception '%', repeat('x', 50000000);", /sent too much/],
  ])('whose code %s is ended, and nothing is left', async (_, body, message) => {
    await inOwn(indexed(body));
    await whileUnreadable(() => expect(mask(own)).rejects.toThrow(message));
    expect(await follower.servers.query("select from pg_database where datname ~ '^bgmask_'")).toEqual([]);
    expectUndisturbed();
  });

  test.runIf(IS_NIGHTLY)('whose code fills temporary files meets the limit', async () => {
    await inOwn(
      indexed(
        `perform set_config('work_mem', '64kB', false), count(*) from (select n from generate_series(1, 1000000000) n order by -n) as sorted;`,
      ),
    );
    expect(await mask(own)).toMatchObject({
      masked: false,
      problems: [{ reason: expect.stringContaining('SQLSTATE 53400') }],
    });
  });

  test('that nobody attacks succeeds, and its snapshot has no mark', async () => {
    await inOwn(indexed('null;'));
    const id = randomUUID();
    expect(await mask(own, id)).toMatchObject({ masked: true });
    expect(
      await follower.servers.query(
        "select shobj_description(oid, 'pg_database') as mark from pg_database where datname = $1",
        [`bgsnap_${id.replaceAll('-', '')}`],
      ),
    ).toEqual([{ mark: null }]);
  });
});

describe('a comparison with a snapshot', () => {
  const compared = async (of: Branch, change: string) => {
    const { host } = follower.servers;
    const { project_id, branch_id, database } = of;
    const against = { snapshot_id: randomUUID() };
    const take = {
      project_id,
      branch_id,
      source: database,
      ...against,
      busy_wait: 20_000,
      unless_same_as: null,
    };
    await runOperation(host, 'snapshot.take', take);
    await asClient(host, 'direct', of, 'owner', change);
    const wanted = { project_id, branch_id, database, against, job_id: null, rows: false, schema: true };
    return runOperation(host, 'branch.diff', { ...wanted, within: 60_000 });
  };

  test('whose statements run code that takes locks is ended, and nothing is left', async () => {
    await asClient(
      ...([follower.servers.host, 'direct', own, 'owner'] as const),
      `create function greedy(n int) returns boolean immutable language plpgsql as $greedy$ begin
         if current_database() ~ '^bgproof_' then ${TAKE_LOCKS} end if; return true;
       end $greedy$;
       create table tried (n int)`,
    );
    // The planner computes what depends on no row.
    await whileUnreadable(() =>
      expect(compared(own, 'create index on tried (n) where greedy(1)')).rejects.toMatchObject({
        code: 'STATEMENT_REFUSED',
        message: expect.stringMatching(/takes too many locks/),
      }),
    );
    expect(
      await follower.servers.query("select from pg_database where datname ~ '^bg(proof|diff)_'"),
    ).toEqual([]);
    expectUndisturbed();
  });

  test.runIf(IS_NIGHTLY)('whose dump takes locks is ended, and nothing is left', async () => {
    const of = await new Project(follower.servers.host).create('db_wide_prod', null);
    const owner = await connect(follower.servers.host, 'direct', of, 'owner');
    // Each table is a lock until the end of the transaction.
    await owner.query(
      `do $$ begin for n in 1..5200 loop
         execute format('create table t%s (n int)', n); if n % 1000 = 0 then commit; end if;
       end loop; end $$`,
    );
    await owner.end();
    await whileUnreadable(() =>
      expect(compared(of, 'create table one_more (n int)')).rejects.toMatchObject({
        code: 'STATEMENT_REFUSED',
        message: expect.stringMatching(/takes too many locks/),
      }),
    );
    expectUndisturbed();
  });
});

test.runIf(IS_NIGHTLY).each([
  ['transaction ids', TAKE_IDS, /takes too many transaction ids/],
  ['locks', TAKE_LOCKS, /takes too many locks/],
])('an import whose code takes %s is ended, and nothing is left', async (_, body, message) => {
  await follower.renew();
  await follower.source.run(
    `set role app; ${BURN} reset role; ${check(body).replaceAll('^db_follow', '^bgload_')}`,
  );
  await follower.source.run('insert into checked values (1)');
  await whileUnreadable(async () => {
    const { copied, findings } = await follower.run('transfer.copy', follower.copyParams({ follow: null }));
    expect(copied).toBeNull();
    expect(findings).toMatchObject([{ severity: 'error', message: expect.stringMatching(message) }]);
  });
  expect(await follower.servers.query("select from pg_database where datname ~ '^bgload_'")).toEqual([]);
  expectUndisturbed();
});

test.runIf(IS_NIGHTLY)(
  'autovacuum shows no statement of the superuser to the functions that it runs',
  async () => {
    const { host, query } = follower.servers;
    await query('alter system set autovacuum_naptime = 1');
    await query('select pg_reload_conf()');
    await asClient(
      ...([host, 'direct', own, 'owner'] as const),
      `create table seen (login text, own int);
     create function note() returns void language plpgsql as $note$ begin
       insert into public.seen select session_user, count(*) from pg_catalog.branchgate_own_sessions();
     end $note$;
     create function spy(n int) returns int immutable language plpgsql as $spy$ begin
       if session_user !~ '^u_' then perform public.note(); end if; return n;
     end $spy$;
     create table spied (n int); create index on spied (public.spy(n));
     insert into spied select generate_series(1, 500)`,
    );
    const seen = await eventually(async () => {
      const rows = await asClient(
        ...([host, 'direct', own, 'owner'] as const),
        'select distinct login, own from seen',
      );
      expect(rows).not.toEqual([]);
      return rows;
    }, 120);
    expect(seen).toEqual([{ login: 'branchgate', own: 0 }]);
  },
);

test('no statement of the platform is shown, whatever it says', async () => {
  const { query } = follower.servers;
  const branch = await project.create('db_victim_prod_br_new', null);
  const shown = await query(
    "select query from pg_stat_activity where application_name = 'branchgate-agent' and (query <> '' or state <> 'disabled')",
  );
  expect(shown).toEqual([]);
  expect(await query("select from pg_stat_activity where application_name = 'branchgate-agent'")).not.toEqual(
    [],
  );
  await project.drop(branch);
});

/**
 * Kinds that last for moments, that only other versions of a subscription have, or whose port this host does not serve
 * (`test/end-to-end/sql-over-websocket.e2e.test.ts`).
 */
const NOT_DRIVEN = new Set(['spare', 'parallel apply', 'websocket']);
/** Of the operator and the agent. */
const NO_TENANTS = new Set(['branchgate', 'postgres', 'template0', 'template1']);

test.runIf(IS_NIGHTLY)(
  'a host at work shows no kind of process or database that the table does not have',
  async () => {
    const { servers } = follower;
    const { host } = servers;
    const busy = await new Project(host).create('db_busy_prod', null);
    const seen = new Set<string>();
    const unknown = new Set<string>();
    let isOver = false;
    const looking = (async () => {
      while (!isOver) {
        for (const { name } of await servers.query<{ name: string }>(
          'select datname::text as name from pg_database',
        ))
          if (!NO_TENANTS.has(name) && databaseKind(name) === null) unknown.add(name);
        // The watchdogs find the project of an operation by this comment.
        for (const { name } of await servers.query<{ name: string }>(
          `select distinct datname::text as name from pg_stat_activity join pg_database using (datname)
           where datname ~ '^bg' and usename <> 'branchgate' and shobj_description(pg_database.oid, 'pg_database') is null`,
        ))
          unknown.add(`${name} has no comment`);
        for (const row of await servers.query<{
          backend: string;
          database: string;
          login: string | null;
          way: Way;
        }>(
          `select backend_type as backend, datname::text as database, usename::text as login, case when client_addr is null then 'local' else 'network' end as way
         from pg_stat_activity where datname is not null`,
        )) {
          if (
            NO_TENANTS.has(row.database) ||
            (row.backend === 'client backend' && row.login === 'branchgate')
          )
            continue;
          const kind = processKind(row);
          if (kind) seen.add(kind);
          else unknown.add(JSON.stringify(row));
        }
        await sleep(50);
      }
    })();
    await follower.renew();
    await follower.begin();
    // A table that is added later is copied by a worker of its own; a copy for another project waits as well.
    await follower.source.run(slowTable());
    const other = await follower.neighbour();
    const stopCopy = randomUUID();
    const copying = other
      .run('transfer.copy', {
        ...other.copyParams({ follow: null, source_url: follower.source.url() }),
        job_id: stopCopy,
      })
      .catch(() => {});
    await servers.query('alter system set autovacuum_naptime = 1');
    await servers.query('select pg_reload_conf()');
    const sleeps = (database: string) =>
      `if current_database() ~ '${database}' then perform pg_sleep(2); end if; return n;`;
    await asClient(
      ...([host, 'direct', busy, 'owner'] as const),
      `create function slow(n int) returns int immutable language plpgsql as $slow$ begin
       ${sleeps('^bgmask_')} end $slow$;
     create function lazy(n int) returns int immutable language plpgsql as $lazy$ begin
       if session_user !~ '^u_' then perform sum(i) from generate_series(1, 20000) as i; end if; return n; end $lazy$;
     create table hidden (id int primary key, v text); create index on hidden (slow(id));
     create table analysed (n int); create index on analysed (lazy(n)); insert into analysed select generate_series(1, 500);
     insert into hidden values (1, 'a')`,
    );
    const masking = runOperation(host, 'snapshot.mask', {
      job_id: randomUUID(),
      project_id: busy.project_id,
      branch_id: busy.branch_id,
      source: busy.database,
      snapshot_id: randomUUID(),
      busy_wait: 20_000,
      keep_tables: [],
      unless_same_as: null,
      masking: {
        rules: [{ table: 'public.hidden', column: 'v', with: 'hash' }],
        unlisted: 'keep',
        key: randomBytes(32).toString('base64'),
      },
    });
    // A clone ends idle sessions of its source.
    await masking;
    const pooled = await connect(host, 'pooled', busy, 'read_write');
    const client = await connect(host, 'direct', busy, 'owner');
    await pooled.query('select 1');
    // Its schema is read by dumps, and the statements are tried in a database of their own.
    const against = { snapshot_id: randomUUID() };
    await runOperation(host, 'snapshot.take', {
      project_id: busy.project_id,
      branch_id: busy.branch_id,
      source: busy.database,
      ...against,
      busy_wait: 20_000,
      unless_same_as: null,
    });
    await client.query('alter table hidden add column more int; insert into hidden values (2, $$b$$, 2)');
    const expected = PROCESS_KINDS.filter((kind) => !NOT_DRIVEN.has(kind)).toSorted();
    await eventually(async () => {
      await runOperation(host, 'branch.diff', {
        project_id: busy.project_id,
        branch_id: busy.branch_id,
        database: busy.database,
        against,
        job_id: null,
        rows: true,
        schema: true,
        within: 60_000,
      });
      await runOperation(host, 'try.run', {
        try_id: randomUUID(),
        project_id: busy.project_id,
        branch_id: busy.branch_id,
        source: snapshotDatabaseName(against.snapshot_id),
        busy_wait: 0,
        role: 'read_write',
        sql: 'select pg_sleep(0.5)',
        params: [],
        limits: { lock_ms: 1_000, table_bytes: 0 },
        wait: 25_000,
      });
      await runOperation(host, 'change.rehearse', {
        project_id: busy.project_id,
        job_id: randomUUID(),
        branch_id: busy.branch_id,
        database: busy.database,
        source: busy.database,
        busy_wait: 20_000,
        steps: stepsOf('select pg_sleep(0.2)'),
      });
      await client.query(
        'set debug_parallel_query = on; select count(*) from analysed where pg_sleep(0.001) is not null',
      );
      expect([...seen].toSorted()).toEqual(expect.arrayContaining(expected));
    }, 120);
    await host.copies.stop(stopCopy);
    await copying;
    await Promise.all([pooled.end(), client.end()]);
    isOver = true;
    await looking;
    expect([...unknown]).toEqual([]);
    await follower.end();
    await follower.source.run(NO_SLOW_TABLE);
  },
);
