import { randomUUID } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { releaseExpired } from '../../../agent/moves/mover-login.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { inSession, PLATFORM_ROLE } from '../../../agent/postgres/connect.ts';
import { databasePrint } from '../../../agent/postgres/database-print.ts';
import { AGENT_LOGINS } from '../../../agent/servers/configuration.ts';
import { type CopiedTable, countRows } from '../../../agent/transfer/copy-rows.ts';
import { inSource, openReplicationSession } from '../../../agent/transfer/source-session.ts';
import { makePassword, scramVerifier } from '../../../edge/crypto/scram.ts';
import { loginName } from '../../../shared/branch/login.ts';
import type { Method, MethodResult } from '../../../shared/protocol/operations.ts';
import { followName, moverLogin } from '../../../shared/protocol/transfer-operations.ts';
import { eventually } from '../../support/eventually.ts';
import { STATE, TRANSFER } from '../../support/host/follower.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, Project } from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import { expectSameCatalogs, FOLDER, PUBLIC_SCHEMAS } from './own-catalog.ts';

/** The operations of a move from one host to another, in the order of its job. */

let former: TestHost;
let next: TestHost;

beforeAll(async () => {
  former = await startHost();
  next = await startHost();
});
afterAll(async () => {
  await next?.stop();
  await former?.stop();
});

/** A test that has failed is no reason for others to fail. */
async function releaseAll() {
  const left = await former.query<{ login: string; project_id: string }>(
    'select login, project_id from mover',
  );
  for (const { login, project_id } of left)
    await runOperation(former.host, 'move.release', {
      job_id: login.replace(/^mv_(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-'),
      project_id,
    });
}

const BANK = `
  create table account (id int primary key, balance int not null);
  create table transfer (id bigint generated always as identity primary key, amount int not null);
  create table counter (id int primary key, n int not null);
  insert into account select n, 1000 from generate_series(1, 50) n;
  insert into counter values (1, 0)`;

type Follow = { slot: string; publication: null } | null;

class Move {
  readonly job_id = randomUUID();
  readonly login = moverLogin(this.job_id);
  readonly password = makePassword();
  readonly #project: Project;
  readonly #main: Branch;

  constructor(project: Project, main: Branch) {
    this.#project = project;
    this.#main = main;
  }

  admit = async ({
    frozen = [] as string[],
    from = ['127.0.0.1'],
    valid_seconds = 3600,
    closes_next = false,
  } = {}) =>
    runOperation(former.host, 'move.admit', {
      job_id: this.job_id,
      project_id: this.#project.id,
      database: this.#main.database,
      verifier: await scramVerifier(this.password),
      from,
      valid_seconds,
      frozen,
      closes_next,
    });

  #ofJob = () => ({ job_id: this.job_id, project_id: this.#project.id });
  release = () => runOperation(former.host, 'move.release', this.#ofJob());
  /** The fence on the former host. */
  close = async (...frozen: string[]) => {
    const rows = await former.query<{ branch_id: string }>(
      `select branch_id from branch where project_id = '${this.#project.id}'`,
    );
    const access = this.#access(rows.map(({ branch_id }) => branch_id));
    return runOperation(former.host, 'move.close', { ...this.#ofJob(), access, frozen });
  };
  /** As an undone move opens it again. */
  open = () =>
    runOperation(former.host, 'access.apply', { project_id: this.#project.id, access: this.#access([]) });

  #access = (closed: string[]) => {
    this.#project.revision += 1;
    return {
      revision: this.#project.revision,
      tenant: this.#project.id,
      closed,
      rules: [{ branch_id: null, cidr: '127.0.0.1/32' }],
    };
  };

  source = (database = this.#main.database) => ({
    address: '127.0.0.1',
    host: '127.0.0.1',
    port: former.host.settings.POSTGRES_PORT,
    user: this.login,
    password: this.password,
    database,
    mustVerify: false,
  });

  url = (database: string) =>
    `postgresql://${this.login}:${this.password}@127.0.0.1:${former.settings.POSTGRES_PORT}/${database}`;

  /** As the other host connects. @returns its name there, or what is wrong */
  async read(database?: string): Promise<unknown> {
    const found = await inSource({}, this.source(database), { within: 10_000 }, async ({ session, tls }) => {
      const { rows } = await session.query('SELECT current_user::text AS name');
      return [rows[0], tls];
    });
    return found.ok ? found.value : found.failure.problem;
  }

  get isAdmitted() {
    return [{ name: this.login }, 'channel_binding'];
  }

  /** An empty branch with the same passwords on the next host, and the copy of this one, which is not swapped in yet. */
  async load(there: Project, branch: Branch, follow: Follow, job_id: string) {
    const empty: Branch = { ...branch, job_id: randomUUID() };
    await Promise.all([there.prepare(empty), there.clone(empty, null)]);
    await there.finalize(empty);
    const of = { project_id: there.id, branch_id: branch.branch_id, database: branch.database };
    const source_url = this.url(branch.database);
    const load = { source_url, tables: null, room_bytes: 2 ** 30, jobs: 2, busy_wait: 1_000, of_host: true };
    const { copied, findings } = await runOperation(next.host, 'transfer.copy', {
      ...of,
      ...load,
      job_id,
      follow,
    });
    expect(copied, JSON.stringify(findings)).not.toBeNull();
    return { of, source_url };
  }

  /** As `load`, and swapped in. */
  async copy(there: Project, branch: Branch, follow: Follow, job_id = randomUUID()) {
    const { of, source_url } = await this.load(there, branch, follow, job_id);
    const snapshot_id = randomUUID();
    await runOperation(next.host, 'reset.swap', { ...of, job_id, snapshot_id });
    await runOperation(next.host, 'snapshot.drop', { project_id: there.id, snapshot_id });
    if (follow)
      await runOperation(next.host, 'follow.start', {
        ...of,
        source_url,
        ...follow,
        tables: null,
        of_host: true,
      });
    return of;
  }
}

const leftOvers = async () => ({
  slots: await former.query('select slot_name from pg_replication_slots'),
  logins: await former.query("select rolname from pg_roles where rolname ~ '^mv_'"),
  rows: await former.query('select login from mover'),
});
const NOTHING = { slots: [], logins: [], rows: [] };

describe('the login of a move', () => {
  let project: Project;
  let main: Branch;
  const owner = (sql: string) => asClient(former.host, 'direct', main, 'owner', sql);
  beforeAll(async () => {
    project = new Project(former.host);
    main = await project.create('db_admitting_prod', null);
    await owner('create table t (id int)');
  });
  afterEach(releaseAll);

  test('another host reads a project with a login of its own, from its address only, until it is released', async () => {
    // Nobody connects from here by their rules.
    const closed = new Project(former.host, [{ branch_id: null, cidr: '192.0.2.0/24' }]);
    const read = await closed.create('db_read_prod', null);
    const move = new Move(closed, read);
    expect(await move.read()).not.toEqual(move.isAdmitted);
    await move.admit({ from: ['192.0.2.7'] });
    expect(await move.read()).not.toEqual(move.isAdmitted);
    await move.admit();
    const first = await move.admit();
    const second = await move.admit();
    expect(second).toEqual(first);
    expect(await move.read()).toEqual(move.isAdmitted);
    expect(await move.read(main.database)).not.toEqual(move.isAdmitted);
    await expect(
      openReplicationSession({}, { ...move.source(main.database), tls: 'channel_binding' }),
    ).rejects.toThrow('pg_hba.conf');
    await expect(asClient(former.host, 'direct', read, 'owner', 'select 1')).rejects.toThrow('pg_hba.conf');

    const opened = await openReplicationSession({}, { ...move.source(), tls: 'channel_binding' });
    await opened.session.query(`CREATE_REPLICATION_SLOT ${followName(closed.id)} LOGICAL pgoutput`);
    await inSource({}, move.source(), { within: 10_000, mode: 'change' }, ({ session }) =>
      session.query(`CREATE PUBLICATION ${followName(closed.id)}`),
    );
    expect(await move.release()).toEqual({ released: true });
    opened.end();
    expect(await leftOvers()).toEqual(NOTHING);
    expect(await move.read()).not.toEqual(move.isAdmitted);
    expect(await move.release()).toEqual({ released: false });
  });

  test('a login that nobody extends is removed with its slot, and is never made again', async () => {
    const move = new Move(project, main);
    await move.admit({ valid_seconds: 1, frozen: [main.branch_id] });
    const opened = await openReplicationSession({}, { ...move.source(), tls: 'channel_binding' });
    await opened.session.query(`CREATE_REPLICATION_SLOT ${followName(project.id)} LOGICAL pgoutput`);
    await eventually(async () => {
      await releaseExpired(former.host);
      expect(await leftOvers()).toEqual(NOTHING);
    });
    opened.end();
    await owner('insert into t values (1)');
    await expect(move.admit()).rejects.toThrow('was removed');
    expect(await move.close()).toMatchObject({ admitted_at: null });
    expect(await leftOvers()).toEqual(NOTHING);
    await move.open();
  });

  test('a call that comes after the release, or before any, makes no login', async () => {
    const move = new Move(project, main);
    expect(await move.release()).toEqual({ released: false });
    await expect(move.admit({ frozen: [main.branch_id] })).rejects.toThrow('was removed');
    expect(await leftOvers()).toEqual(NOTHING);
    await owner('insert into t values (1)');
  });

  test('a later call with fewer branches lets none be written again', async () => {
    const move = new Move(project, main);
    await move.admit({ frozen: [main.branch_id] });
    await move.admit({ frozen: [] });
    await expect(owner('begin read write; insert into t values (1)')).rejects.toThrow(/permission denied/);
    await move.release();
  });

  test('sessions that a killed agent has left are ended by the next call', async () => {
    const move = new Move(project, main);
    await move.admit();
    const client = await connect(former.host, 'direct', main, 'owner');
    await client.query('select 1');
    // The agent was killed once it had stored the state.
    await former.query(
      `insert into frozen_branch (login, branch_id) values ('${move.login}', '${main.branch_id}')`,
    );
    await move.admit({ frozen: [main.branch_id] });
    await expect(client.query('insert into t values (1)')).rejects.toThrow();
    await client.end().catch(() => {});
    await move.release();
  });

  /** What can write although its login can only read. */
  const WRITERS_SCHEMA = `
  create table written (id int);
  insert into written values (1);
  create sequence taken;
  create function inserts() returns void language sql security definer as 'insert into public.written values (1)';
  create function empties() returns void language sql security definer as 'truncate public.written';
  create function makes() returns void language sql security definer as 'create table public.made (id int)';
  create function read() returns int language sql as 'select 1';
  create function changes() returns void language sql security definer as
    $$create or replace function public.read() returns int language sql as $x$select 2$x$ $$;
  create function takes() returns bigint language sql security definer as $$select nextval('public.taken')$$;
  create table open (id int);
  grant insert on open to public`;
  const WRITERS = {
    'a function of the owner': 'select inserts()',
    'a function that empties a table': 'select empties()',
    'a function that makes a table': 'select makes()',
    'a function that changes another one': 'select changes()',
    'a function that takes a value of a sequence': 'select takes()',
    'a right of everybody': 'insert into open values (1)',
  } as const;

  describe('a branch that can only be read', () => {
    beforeAll(() => owner(WRITERS_SCHEMA));

    test.each(firstByDay(1, Object.entries(WRITERS)))(
      'what %s writes to a branch that is copied is found when the host is closed',
      async (_name, write) => {
        const move = new Move(project, main);
        await move.admit({ frozen: [main.branch_id] });
        const { admitted_at } = await move.admit({ closes_next: true });
        await asClient(former.host, 'pooled', main, 'read_only', 'select 1');
        expect(await move.close(main.branch_id)).toMatchObject({ admitted_at, changed: [] });
        await expect(owner('select 1')).rejects.toThrow();
        await move.open();
        await asClient(former.host, 'direct', main, 'read_write', `begin read write; ${write}; commit`);
        expect(await move.close(main.branch_id)).toMatchObject({ admitted_at, changed: [main.branch_id] });
        await move.release();
        await move.open();
        await owner('insert into t values (1)');
      },
    );
  });

  test('clients do not wait for the comparison of a branch that had no transaction since the last one', async () => {
    const move = new Move(project, main);
    await move.admit({ frozen: [main.branch_id] });
    const [{ print } = { print: '' }] = await former.query<{ print: string }>(
      'select print from frozen_branch',
    );
    const setPrint = (text: string) => former.query(`update frozen_branch set print = '${text}'`);
    // An autovacuum has transactions too.
    await eventually(async () => {
      await setPrint(print);
      await move.open();
      await move.admit({ closes_next: true });
      // It would be found if the branch was compared again.
      await setPrint('another');
      expect(await move.close(main.branch_id)).toMatchObject({ changed: [] });
    });
    await move.open();
    await asClient(former.host, 'direct', main, 'read_only', 'select 1');
    expect(await move.close(main.branch_id)).toMatchObject({ changed: [main.branch_id] });
    await move.open();
    // One that has changed is none.
    await move.admit({ closes_next: true });
    expect(await move.close(main.branch_id)).toMatchObject({ changed: [main.branch_id] });
    await move.release();
    await move.open();
  });

  test('a crash of PostgreSQL, which loses what was written, counts as a change', async () => {
    const move = new Move(project, main);
    await move.admit({ frozen: [main.branch_id] });
    const killed = await connect(former.host, 'direct', main, 'read_only');
    const { rows } = await killed.query<{ pid: number }>('select pg_backend_pid() as pid');
    process.kill(rows[0]?.pid ?? 0, 'SIGKILL');
    await killed.end().catch(() => {});
    await eventually(async () =>
      expect(await move.close(main.branch_id)).toMatchObject({ changed: [main.branch_id] }),
    );
    await move.release();
    await move.open();
  });

  test('a branch of which the host does not know what it was counts as changed', async () => {
    const move = new Move(project, main);
    await move.admit();
    expect(await move.close(main.branch_id)).toMatchObject({ changed: [main.branch_id] });
    await move.release();
    await move.open();
  });

  test('what is not closed is not ended', async () => {
    const move = new Move(project, main);
    await move.admit();
    await expect(
      runOperation(former.host, 'move.close', {
        job_id: move.job_id,
        project_id: project.id,
        access: null,
        frozen: [],
      }),
    ).rejects.toThrow('not closed');
    await owner('insert into t values (1)');
    await move.release();
  });

  test('no transaction of a closed project continues, over no port and in no session of the agent', async () => {
    const move = new Move(project, main);
    await move.admit();
    const slow = [
      asClient(former.host, 'pooled', main, 'read_write', 'insert into t select 1 from pg_sleep(20)'),
      runOperation(former.host, 'query.run', {
        branch_id: main.branch_id,
        database: main.database,
        project_id: project.id,
        role: 'read_write',
        sql: 'insert into t select 1 from pg_sleep(20)',
        params: [],
      }),
    ];
    const outcomes = Promise.allSettled(slow);
    await eventually(async () =>
      expect(
        await former.query(
          "select from pg_stat_activity where query ~ 'pg_sleep.20' and state = 'active' and pid <> pg_backend_pid()",
        ),
      ).toHaveLength(2),
    );
    await move.close();
    expect(
      await former.query(
        `select usename from pg_stat_activity where datname = '${main.database}' and usename ~ '^u_'`,
      ),
    ).toEqual([]);
    expect((await outcomes).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    await move.release();
    await move.open();
  });

  test('the release finds slots of other names, and publications in clones', async () => {
    const move = new Move(project, main);
    await move.admit();
    const opened = await openReplicationSession({}, { ...move.source(), tls: 'channel_binding' });
    for (const slot of [followName(project.id), 'pg_16400_sync_16384_7000000000000000000'])
      await opened.session.query(`CREATE_REPLICATION_SLOT ${slot} LOGICAL pgoutput`);
    opened.end();
    const make = await inSource({}, move.source(), { within: 10_000, mode: 'change' }, ({ session }) =>
      session.query('CREATE PUBLICATION mine; CREATE PUBLICATION more'),
    );
    expect(make.ok, JSON.stringify(make)).toBe(true);
    // A tenant can name the login, which could not be dropped then.
    await owner(
      `create table granted (id int); grant select on granted to ${move.login};
     alter default privileges grant select on tables to ${move.login};
     alter table granted enable row level security; create policy p on granted to ${move.login} using (true)`,
    );
    await project.create('db_admitting_prod_pr_1', main.database);
    // As a snapshot and a spare are: nobody may connect.
    await eventually(async () => {
      await former.query(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'db_admitting_prod_pr_1'",
      );
      await former.query('create database bgclone_of_main template "db_admitting_prod_pr_1"');
    });
    await former.query('alter database bgclone_of_main allow_connections false connection limit 0');
    expect(await move.release()).toEqual({ released: true });
    expect(await leftOvers()).toEqual(NOTHING);
    expect(
      await former.query("select datallowconn from pg_database where datname = 'bgclone_of_main'"),
    ).toEqual([{ datallowconn: false }]);
    await former.query('drop database bgclone_of_main');
  });

  test('another move of a project ends what an earlier one has left, and is not ended with it', async () => {
    const earlier = new Move(project, main);
    const later = new Move(project, main);
    await earlier.admit();
    await later.admit();
    expect(await earlier.read()).not.toEqual(earlier.isAdmitted);
    const opened = await openReplicationSession({}, { ...later.source(), tls: 'channel_binding' });
    await opened.session.query(`CREATE_REPLICATION_SLOT ${followName(project.id)} LOGICAL pgoutput`);
    opened.end();
    expect(await earlier.release()).toEqual({ released: false });
    expect(await former.query('select slot_name from pg_replication_slots')).toHaveLength(1);
    await later.release();
    expect(await leftOvers()).toEqual(NOTHING);
  });

  test('a host with the pg_hba.conf of an earlier release says that it cannot remove a login, and has removed it', async () => {
    const [{ hba_file } = { hba_file: '' }] = await former.query<{ hba_file: string }>('show hba_file');
    const present = readFileSync(hba_file, 'utf8');
    const reloadWith = async (text: string) => {
      writeFileSync(hba_file, text);
      await former.query('select pg_reload_conf()');
    };
    await reloadWith(present.replace(AGENT_LOGINS, '/^u_[0-9a-f]{32}_(owner|rw|ro|query)$'));
    const move = new Move(project, main);
    try {
      await eventually(async () => expect(await move.admit()).toMatchObject({ can_remove: false }));
      await move.release();
      expect(await leftOvers()).toEqual(NOTHING);
    } finally {
      await reloadWith(present);
    }
    const again = new Move(project, main);
    await eventually(async () => expect(await again.admit()).toMatchObject({ can_remove: true }));
    await again.release();
  });

  test('main moves under load with its logins, and every commit arrives once', async () => {
    const project = new Project(former.host);
    const main = await project.create('db_moving_prod', null);
    await asClient(former.host, 'direct', main, 'owner', BANK);
    const move = new Move(project, main);
    await move.admit();

    const clients = [1, 2].map(async () => {
      const client = await connect(former.host, 'direct', main, 'read_write');
      let committed = 0;
      try {
        for (;;) {
          await client.query(TRANSFER);
          committed += 1;
          // Leaves the processors to the others.
          await sleep(IS_NIGHTLY ? 2 : 10);
        }
      } catch {
        return committed;
      } finally {
        await client.end().catch(() => {});
      }
    });
    const there = new Project(next.host, undefined, project.id);
    const of = await move.copy(there, main, { slot: followName(project.id), publication: null });
    const run = <M extends Method>(method: M, more: object): Promise<MethodResult<M>> =>
      runOperation(next.host, method, { ...of, ...more });
    await eventually(async () =>
      expect(await run('follow.status', {})).toMatchObject({
        state: 'following',
        lag_bytes: expect.any(Number),
      }),
    );
    const { compared, findings } = await run('move.compare', { job_id: move.job_id });
    expect(compared, JSON.stringify(findings)).toMatchObject({ tables: 3 });

    // The fence: the former host refuses and ends its clients.
    const began = performance.now();
    const { written_lsn: until_lsn } = await move.close();
    const closed = performance.now() - began;
    const cut = await run('follow.cutover', {
      job_id: move.job_id,
      writes_refused: true,
      is_compared: true,
      until_lsn,
    });
    console.log(`closed in ${closed} ms, taken over in ${performance.now() - began} ms`);
    expect(cut.cut_over, JSON.stringify(cut.findings)).toMatchObject({ dropped_at_source: false });
    const committed = (await Promise.all(clients)).reduce((sum, one) => sum + one, 0);
    expect(await move.release()).toEqual({ released: true });
    const [state] = await asClient(next.host, 'direct', main, 'read_write', STATE);
    // A commit whose answer was lost with its session may have happened.
    expect(state).toMatchObject({ sum: 50_000, transfers: state?.counted });
    expect(Number(state?.counted)).toBeGreaterThanOrEqual(committed);
    expect(Number(state?.counted)).toBeLessThanOrEqual(committed + clients.length);
    const insert = 'insert into transfer (amount) values (1) returning id::int';
    const [inserted] = await asClient(next.host, 'direct', main, 'read_write', insert);
    expect(inserted?.id).toBeGreaterThan(Number(state?.last));
    expect(await leftOvers()).toEqual(NOTHING);
  });

  test.runIf(IS_NIGHTLY)(
    'clients that write do not wait for an autovacuum of the table that is compared',
    async () => {
      const project = new Project(former.host);
      const main = await project.create('db_vacuumed_prod', null);
      await asClient(
        ...([former.host, 'direct', main, 'owner'] as const),
        `create table dead (id int primary key, text text) with (autovacuum_vacuum_threshold = 1, autovacuum_vacuum_scale_factor = 0,
       autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1);
     insert into dead select n, repeat('x', 500) from generate_series(1, 20000) n;
     delete from dead where id % 2 = 0`,
      );
      const move = new Move(project, main);
      await former.query("alter system set autovacuum_naptime = '1s'");
      await former.query('select pg_reload_conf()');
      try {
        await move.admit();
        await eventually(async () =>
          expect(
            await former.query(
              "select from pg_stat_activity where backend_type = 'autovacuum worker' and query like '%public.dead%'",
            ),
          ).toHaveLength(1),
        );
        // PostgreSQL would cancel it after a second by default.
        const locked = await inSource({}, move.source(), { within: 10_000, mode: 'change' }, ({ session }) =>
          session.query("begin; set local lock_timeout = '900ms'; lock table public.dead in share mode"),
        );
        expect(locked.ok, JSON.stringify(locked)).toBe(true);
      } finally {
        await former.query('alter system reset autovacuum_naptime');
        await former.query('select pg_reload_conf()');
      }
      await move.release();
    },
  );

  // The last one, because it drops the project.
  test('a drop that is late leaves a project that is in use', async () => {
    const drop = (up_to_revision: number) =>
      runOperation(former.host, 'project.drop', {
        job_id: randomUUID(),
        project_id: project.id,
        up_to_revision,
      });
    const move = new Move(project, main);
    const before = project.revision;
    await move.open();
    await expect(drop(before)).rejects.toThrow('in use');
    await owner('select 1');
    expect(await drop(project.revision)).toEqual({ dropped_databases: 2 });
  });
});

describe('a branch that is copied', () => {
  let project: Project;
  let main: Branch;
  let branch: Branch;
  let move: Move;
  beforeAll(async () => {
    project = new Project(former.host);
    main = await project.create('db_several_prod', null);
    const { branch_id: left } = await project.create('db_several_prod_left', main.database);
    const of = (role: 'ro' | 'rw') => `g_${project.id.replaceAll('-', '')}_${role}`;
    await asClient(
      ...([former.host, 'direct', main, 'owner'] as const),
      `${BANK};
     create sequence restarted; select setval('restarted', 5000, false);
     create sequence used; select nextval('used');
     create table audit (id uuid primary key default gen_random_uuid());
     create table orders (id int primary key); grant select on orders to ${loginName(left, 'read_only')};
     create function audit() returns trigger language plpgsql as 'begin insert into public.audit default values; return null; end';
     create trigger always after insert on orders for each row execute function audit();
     alter table orders enable always trigger always;
     create table secret (id int primary key, own text, shown text);
     insert into secret values (1, 'a', 'b');
     revoke all on secret from ${of('ro')};
     grant select (id, shown) on secret to ${of('ro')};
     create table filtered (id int primary key);
     insert into filtered values (1), (2);
     alter table filtered enable row level security;
     create policy one on filtered for select to ${of('ro')} using (id = 1);
     create policy all_rows on filtered to ${of('rw')} using (true);
     create function internal() returns int language sql as 'select 1';
     revoke all on function internal() from public;
     create schema private;
     grant usage on schema private to ${of('rw')};
     revoke all on schema private from ${of('ro')};
     alter default privileges in schema private grant select on tables to ${of('rw')};
     create sequence s; grant usage on sequence s to public;
     create table event (id int, at date, note text, primary key (id, at)) partition by range (at);
     create table event_old partition of event for values from (minvalue) to ('2026-01-01');
     create index on event (note); insert into event values (1, '2025-01-01');
     create view by_account as select a.id, a.balance, count(*) as n from account a join counter c on c.id = a.id group by a.id;
     create materialized view richest as select max(balance) as most from account; create view shown as select most from richest`,
    );
    branch = await project.create('db_several_prod_pr_1', main.database);
    move = new Move(project, main);
    await move.admit();
  });
  afterAll(releaseAll);

  test('can be read and not written, and arrives as it is', async () => {
    const open = await connect(former.host, 'pooled', branch, 'read_write');
    const owner = await connect(former.host, 'direct', branch, 'owner');
    await owner.query('begin; update account set balance = 0');
    await move.admit({ frozen: [branch.branch_id] });
    await expect(owner.query('commit')).rejects.toThrow();
    await expect(open.query(TRANSFER)).rejects.toThrow();
    await open.end().catch(() => {});
    for (const role of ['owner', 'read_write'] as const)
      await expect(
        asClient(former.host, 'direct', branch, role, 'begin read write; update account set balance = 0'),
      ).rejects.toThrow(/permission denied/);
    await asClient(former.host, 'direct', main, 'read_write', TRANSFER);
    const [state] = await asClient(former.host, 'direct', branch, 'read_write', STATE);
    const there = new Project(next.host, undefined, project.id);
    // A late call for another branch of the same job has left its copy.
    const job_id = randomUUID();
    await move.load(there, main, null, job_id);
    await move.copy(there, branch, null, job_id);
    expect(await asClient(next.host, 'direct', branch, 'read_write', STATE)).toEqual([state]);
  });

  test('continues a sequence where it would have continued', async () => {
    const [values] = await asClient(
      ...([next.host, 'direct', branch, 'owner'] as const),
      "select nextval('restarted')::int as restarted, nextval('used')::int as used",
    );
    expect(values).toEqual({ restarted: 5000, used: 2 });
  });

  test('has a trigger that fires for arriving changes, which is noticed before', async () => {
    const probe = { use: 'follow', into: null, tables: null, publication: null } as const;
    const { source } = await runOperation(next.host, 'transfer.probe', {
      project_id: project.id,
      source_url: move.url(main.database),
      room_bytes: 2 ** 30,
      ...probe,
      of_host: true,
    });
    expect(source?.tables.map(({ table, follows }) => [table, follows]).sort()).toEqual([
      ['account', 'all'],
      ['audit', 'all'],
      ['counter', 'all'],
      ['event_old', 'all'],
      ['filtered', 'all'],
      ['orders', 'inserts'],
      ['secret', 'all'],
      ['transfer', 'all'],
    ]);
    await asClient(next.host, 'direct', branch, 'owner', 'insert into orders values (1)');
    expect(
      await asClient(next.host, 'direct', branch, 'owner', 'select count(*)::int as n from audit'),
    ).toEqual([{ n: 1 }]);
  });

  test('has the keys of its partitions, and its views', async () => {
    const there = (sql: string) => asClient(next.host, 'direct', branch, 'owner', sql);
    const insert = "insert into event values (1, '2025-01-01')";
    expect(await there(`${insert} on conflict (id, at) do update set note = 'again' returning note`)).toEqual(
      [{ note: 'again' }],
    );
    await expect(there(insert)).rejects.toMatchObject({ code: '23505' });
    expect(
      await there(
        "select indisvalid, count(*)::int as n from pg_index where indrelid::regclass::text ~ '^event' group by 1",
      ),
    ).toEqual([{ indisvalid: true, n: 4 }]);
    expect(await there('select n::int, most from by_account cross join shown')).toEqual([
      { n: 1, most: 1000 },
    ]);
  });

  test('has its privileges and policies for roles', async () => {
    const read = (sql: string) => asClient(next.host, 'direct', branch, 'read_only', sql);
    await expect(read('select own from secret')).rejects.toThrow('permission denied');
    expect(await read('select id, shown from secret')).toEqual([{ id: 1, shown: 'b' }]);
    expect(await read('select id from filtered')).toEqual([{ id: 1 }]);
    await expect(read('select internal()')).rejects.toThrow('permission denied');
    await asClient(next.host, 'direct', branch, 'owner', 'create table private.t (id int)');
    await asClient(next.host, 'direct', branch, 'read_write', 'select from private.t');
    await expect(read('select from private.t')).rejects.toThrow('permission denied');
  });

  test('can be written again after the release', async () => {
    await move.release();
    await asClient(former.host, 'direct', branch, 'read_write', TRANSFER);
    expect(await leftOvers()).toEqual(NOTHING);
  });
});

describe('a schema of many kinds', () => {
  afterEach(releaseAll);

  test.each(firstByDay(1, PUBLIC_SCHEMAS).map((path) => [basename(path, '.sql'), path] as const))(
    'like that of a %s, has its catalogs, keys and rights on the next host, after a copy and after following',
    async (name, path) => {
      const database = `db_${name.replaceAll('-', '_')}_prod`;
      const project = new Project(former.host);
      const main = await project.create(database, null);
      await asClient(
        ...([former.host, 'direct', main, 'owner'] as const),
        `${readFileSync(path, 'utf8')};
       create schema keys; set search_path = keys; ${readFileSync(join(FOLDER, 'partitioned-keys.sql'), 'utf8')};
       revoke all on event from g_${project.id.replaceAll('-', '')}_ro; grant select on event to public`,
      );
      const isForced = name === 'rest-service';
      const forced = isForced ? [await project.create(`${database}_br_forced`, main.database)] : [];
      if (isForced)
        await asClient(
          ...([former.host, 'direct', main, 'owner'] as const),
          'alter table internal.articles no force row level security',
        );
      const branch = await project.create(`${database}_br_copied`, main.database);
      const move = new Move(project, main);
      await move.admit({ frozen: [branch, ...forced].map(({ branch_id }) => branch_id) });
      const there = new Project(next.host, undefined, project.id);
      // A policy that applies to owners hides rows from every login of a tenant.
      for (const one of forced)
        await expect(move.copy(there, one, null)).rejects.toThrow(/hides rows of internal\.articles/);
      const follow = { slot: followName(project.id), publication: null };
      await move.copy(there, branch, null);
      const of = await move.copy(there, main, follow, move.job_id);
      await asClient(
        ...([former.host, 'direct', main, 'owner'] as const),
        "insert into keys.event (at, code) values ('2026-03-01', 'z')",
      );
      await move.close(branch.branch_id);
      const { cut_over, findings } = await runOperation(next.host, 'follow.cutover', {
        ...of,
        job_id: move.job_id,
        writes_refused: true,
        is_compared: false,
      });
      expect([findings, cut_over === null]).toEqual([[], false]);
      for (const { database } of [branch, main]) {
        const theirs = await asPlatform(former, database);
        const ours = await asPlatform(next, database);
        await expectSameCatalogs(theirs, ours, { except: follow.slot, rights: true });
      }
      for (const moved of [branch, main]) {
        const client = await connect(next.host, 'direct', moved, 'owner');
        const again =
          "insert into keys.event (id, at, code) overriding system value values (1, '2025-12-02', 'b')";
        const upsert = `${again} on conflict (id, at) do update set note = 'again' returning note`;
        expect((await client.query(upsert)).rows).toEqual([{ note: 'again' }]);
        await expect(client.query(again)).rejects.toMatchObject({ code: '23505' });
        await client.end();
      }
      await runOperation(next.host, 'project.drop', { job_id: randomUUID(), project_id: project.id });
      await move.release();
      expect(await leftOvers()).toEqual(NOTHING);
    },
  );
});

/** A superuser's session, for the readers of catalogs. */
async function asPlatform({ settings }: TestHost, database: string): Promise<pg.Client> {
  const { POSTGRES_SOCKET_DIR: host, POSTGRES_PORT: port } = settings;
  const client = new pg.Client({ host, port, user: PLATFORM_ROLE, database });
  await client.connect();
  return client;
}

/** Code of a tenant, which fails if it runs as the login of a move. */
const TRAPS = `
  create function trap() returns boolean language plpgsql as $$begin
    if current_user like 'mv_%' then raise exception 'ran as %', current_user; end if; return true; end$$;
  create type pair as (a int, b int);
  create function as_text(pair) returns text language plpgsql as $$begin perform trap(); return 'x'; end$$;
  create cast (pair as text) with function as_text(pair);
  create table typed (id int primary key, value pair);
  insert into typed values (1, '(1,2)');
  create table plain (id int primary key, checked boolean check (trap() or checked), doubled int generated always as (id * 2) virtual);
  insert into plain (id) values (1);
  create table filtered (id int primary key);
  insert into filtered values (1);
  alter table filtered enable row level security;
  create policy trapped on filtered using (trap())`;

describe('a copy that follows', () => {
  let project: Project;
  let main: Branch;
  let move: Move;
  let of: Awaited<ReturnType<Move['copy']>>;
  const owner = (sql: string) => asClient(former.host, 'direct', main, 'owner', sql);
  const compare = () => runOperation(next.host, 'move.compare', { ...of, job_id: move.job_id });
  const inCopy = (sql: string) =>
    inSession(
      {
        host: next.settings.POSTGRES_SOCKET_DIR,
        port: next.settings.POSTGRES_PORT,
        user: PLATFORM_ROLE,
        database: main.database,
      },
      (session) => session.query(sql),
    );
  beforeAll(async () => {
    project = new Project(former.host);
    main = await project.create('db_following_prod', null);
    await owner(`${BANK}; ${TRAPS}`);
    move = new Move(project, main);
    await move.admit();
    const there = new Project(next.host, undefined, project.id);
    of = await move.copy(there, main, { slot: followName(project.id), publication: null });
  });
  afterAll(async () => {
    await runOperation(next.host, 'project.drop', { job_id: randomUUID(), project_id: project.id });
    await move.release();
    expect(await leftOvers()).toEqual(NOTHING);
  });

  test('is compared while nobody else commits, with what was committed without a flush, and a row that differs is found', async () => {
    const neighbour = await new Project(former.host).create('db_waiting_prod', null);
    await asClient(former.host, 'direct', neighbour, 'owner', 'create table t (id int)');
    const [writer] = await former.query<{ pid: number }>(
      "select pid from pg_stat_activity where backend_type = 'walwriter'",
    );
    const waiting = await connect(former.host, 'direct', neighbour, 'read_write');
    // Without it, only commits write to the disk.
    process.kill(writer?.pid ?? 0, 'SIGSTOP');
    try {
      await asClient(
        ...([former.host, 'direct', main, 'read_write'] as const),
        'set synchronous_commit = off; update counter set n = 7; insert into transfer (amount) values (1)',
      );
      await waiting.query('begin; insert into t select generate_series(1, 10)');
      const { compared, findings } = await compare();
      expect(compared, JSON.stringify(findings)).toEqual({ tables: 6, rows: 55 });
      // It would be repeated until somebody commits otherwise.
      const commits = await former.query(
        `select from pg_db_role_setting where setrole = '${move.login}'::regrole and setdatabase <> 0`,
      );
      expect(commits).toHaveLength(1);
    } finally {
      process.kill(writer?.pid ?? 0, 'SIGCONT');
      await waiting.end();
    }
    // What follows is read-only for its clients.
    await inCopy('update account set balance = 1 where id = 7');
    expect(await compare()).toMatchObject({
      compared: null,
      findings: [{ problem: 'rows', object: expect.stringContaining('account') }],
    });
    await inCopy('update account set balance = 1000 where id = 7');
  });

  test('is made and compared without code of the tenant that runs as the login of the move', async () => {
    await eventually(async () => expect((await compare()).compared).toMatchObject({ tables: 6 }));
    // A view that takes the name of a table is not read either.
    await owner('create view swapped as select trap() as trapped');
    const counted = await inSource({}, move.source(), { within: 10_000 }, async ({ session }) =>
      countRows(session, { schema: 'public', name: 'swapped' } as CopiedTable),
    );
    expect(counted).toMatchObject({ ok: false });
    expect(JSON.stringify(counted)).not.toContain('ran as');
    expect(JSON.stringify(counted)).toContain('TABLESAMPLE');
    await owner('drop view swapped');
    // A policy that applies to the owners too is an error, and does not run.
    await owner('alter table filtered force row level security');
    const probe = { use: 'import', into: null, tables: null, publication: null, of_host: true } as const;
    const probed = await runOperation(next.host, 'transfer.probe', {
      project_id: project.id,
      source_url: move.url(main.database),
      room_bytes: 2 ** 30,
      ...probe,
    });
    expect(probed.findings).toMatchObject([{ problem: 'rights', object: 'public.filtered' }]);
    const found = await inSource({}, move.source(), { within: 10_000 }, ({ session }) =>
      session.query('select * from public.filtered'),
    );
    expect(found).toMatchObject({
      ok: false,
      failure: { message: expect.stringContaining('row-level security') },
    });
    expect(JSON.stringify(found)).not.toContain('ran as');
    await owner('alter table filtered no force row level security');
  });

  /** As if it was copied now, after the changes of the tests before. */
  async function copiedNow() {
    const print = await inSource({}, move.source(), { within: 10_000 }, ({ session }) =>
      databasePrint(session, 'schema'),
    );
    await next.query('update following set print = $1 where project_id = $2', [
      ...[print.ok ? print.value : null, project.id],
    ]);
    await owner('truncate transfer; analyze');
    await eventually(async () => expect((await compare()).compared).toMatchObject({ tables: 6 }));
  }
  const cutOver = () =>
    runOperation(next.host, 'follow.cutover', {
      ...of,
      job_id: move.job_id,
      writes_refused: true,
      is_compared: true,
    });
  const otherSchema = { cut_over: null, findings: [{ problem: 'schema' }] };

  test.runIf(IS_NIGHTLY).each([
    ['a function', "create function added() returns int language sql as 'select 1'", 'drop function added'],
    ['a privilege', 'grant select on counter to public', 'revoke select on counter from public'],
    ['a column', 'alter table counter add more int', 'alter table counter drop more'],
    ['a large object', "select lo_from_bytea(0, 'x')", 'select lo_unlink(oid) from pg_largeobject_metadata'],
    ['a large object with a low id', "select lo_from_bytea(16000, 'x')", 'select lo_unlink(16000)'],
  ])('does not have %s that was made after it, which is found at the cut-over', async (_, change, undo) => {
    await copiedNow();
    await owner(change);
    expect(await cutOver()).toMatchObject(otherSchema);
    await owner(undo);
  });

  // The last one, because the project is only read from then on.
  test('does not have a table that was made after it, which is found when the host is closed', async () => {
    await copiedNow();
    await owner('create table added (id int primary key)');
    await move.close();
    expect(await cutOver()).toMatchObject(otherSchema);
  });
});
