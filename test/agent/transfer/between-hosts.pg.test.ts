import { randomUUID } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { inSession, PLATFORM_ROLE } from '../../../agent/postgres/connect.ts';
import { AGENT_LOGINS } from '../../../agent/servers/configuration.ts';
import { releaseExpired } from '../../../agent/transfer/admit-host.ts';
import { inSource, openReplicationSession } from '../../../agent/transfer/source-session.ts';
import { makePassword, scramVerifier } from '../../../edge/crypto/scram.ts';
import type { Method, MethodResult } from '../../../shared/protocol/operations.ts';
import { followName, moverLogin } from '../../../shared/protocol/transfer-operations.ts';
import { eventually } from '../../support/eventually.ts';
import { STATE, TRANSFER } from '../../support/host/follower.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, Project } from '../../support/host/host-project.ts';

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

const BANK = `
  create table account (id int primary key, balance int not null);
  create table transfer (id bigint generated always as identity primary key, amount int not null);
  create table counter (id int primary key, n int not null);
  insert into account select n, 1000 from generate_series(1, 50) n;
  insert into counter values (1, 0)`;

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

  admit = async ({ frozen = [] as string[], from = ['127.0.0.1'], valid_seconds = 3600 } = {}) =>
    runOperation(former.host, 'move.admit', {
      ...{ job_id: this.job_id, project_id: this.#project.id, database: this.#main.database },
      ...{ verifier: await scramVerifier(this.password), from, valid_seconds, frozen },
    });

  release = () =>
    runOperation(former.host, 'move.release', { job_id: this.job_id, project_id: this.#project.id });

  source = (database = this.#main.database) => ({
    ...{ address: '127.0.0.1', host: '127.0.0.1', port: former.host.settings.POSTGRES_PORT },
    ...{ user: this.login, password: this.password, database, mustVerify: false },
  });

  url = (database: string) =>
    `postgresql://${this.login}:${this.password}@127.0.0.1:${former.settings.POSTGRES_PORT}/${database}`;

  /** As the other host connects. @returns its name there, or what is wrong */
  async read(database?: string): Promise<unknown> {
    const found = await inSource({}, this.source(database), 10_000, async ({ session, tls }) => {
      const { rows } = await session.query('SELECT current_user::text AS name');
      return [rows[0], tls];
    });
    return found.ok ? found.value : found.failure.problem;
  }

  get isAdmitted() {
    return [{ name: this.login }, 'channel_binding'];
  }

  /** An empty branch with the same passwords on the next host, and the copy of this one in it. */
  async copy(there: Project, branch: Branch, follow: { slot: string; publication: null } | null) {
    const empty: Branch = { ...branch, job_id: randomUUID() };
    await Promise.all([there.prepare(empty), there.clone(empty, null)]);
    await there.finalize(empty);
    const of = { project_id: there.id, branch_id: branch.branch_id, database: branch.database };
    const source_url = this.url(branch.database);
    const job_id = randomUUID();
    const load = { source_url, tables: null, room_bytes: 2 ** 30, jobs: 2, busy_wait: 1_000, of_host: true };
    const { copied, findings } = await runOperation(next.host, 'transfer.copy', {
      ...{ ...of, ...load, job_id, follow },
    });
    expect(copied, JSON.stringify(findings)).not.toBeNull();
    const snapshot_id = randomUUID();
    await runOperation(next.host, 'reset.swap', { ...of, job_id, snapshot_id });
    await runOperation(next.host, 'snapshot.drop', { project_id: there.id, snapshot_id });
    if (follow)
      await runOperation(next.host, 'follow.start', {
        ...{ ...of, source_url, ...follow, tables: null, of_host: true },
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

test('another host reads a project with a login of its own, from its address only, until it is released', async () => {
  // Nobody connects from here by their rules.
  const project = new Project(former.host, [{ branch_id: null, cidr: '192.0.2.0/24' }]);
  const main = await project.create('db_read_prod', null);
  const neighbour = await new Project(former.host).create('db_staying_prod', null);
  const move = new Move(project, main);
  expect(await move.read()).not.toEqual(move.isAdmitted);
  await move.admit({ from: ['192.0.2.7'] });
  expect(await move.read()).not.toEqual(move.isAdmitted);
  await move.admit();
  const [first, second] = [await move.admit(), await move.admit()];
  expect(second).toEqual(first);
  expect(await move.read()).toEqual(move.isAdmitted);
  expect(await move.read(neighbour.database)).not.toEqual(move.isAdmitted);
  await expect(
    openReplicationSession({}, move.source(neighbour.database), 'channel_binding'),
  ).rejects.toThrow('pg_hba.conf');
  await expect(asClient(former.host, 'direct', main, 'owner', 'select 1')).rejects.toThrow('pg_hba.conf');

  const opened = await openReplicationSession({}, move.source(), 'channel_binding');
  await opened.session.query(`CREATE_REPLICATION_SLOT ${followName(project.id)} LOGICAL pgoutput`);
  await inSource(
    {},
    move.source(),
    10_000,
    ({ session }) => session.query(`CREATE PUBLICATION ${followName(project.id)}`),
    { mode: 'change' },
  );
  expect(await move.release()).toEqual({ released: true });
  opened.end();
  expect(await leftOvers()).toEqual(NOTHING);
  expect(await move.read()).not.toEqual(move.isAdmitted);
  expect(await move.release()).toEqual({ released: false });
});

test('a login that nobody extends is removed with its slot, and another admission says so', async () => {
  const project = new Project(former.host);
  const main = await project.create('db_expiring_prod', null);
  const move = new Move(project, main);
  const first = await move.admit({ valid_seconds: 1, frozen: [main.branch_id] });
  const opened = await openReplicationSession({}, move.source(), 'channel_binding');
  await opened.session.query(`CREATE_REPLICATION_SLOT ${followName(project.id)} LOGICAL pgoutput`);
  await eventually(async () => {
    await releaseExpired(former.host);
    expect(await leftOvers()).toEqual(NOTHING);
  });
  opened.end();
  await asClient(former.host, 'direct', main, 'owner', 'create table t (id int)');
  expect(await move.admit()).not.toEqual(first);
  await move.release();
});

test('a branch that is copied can be read and not written, and arrives as it is', async () => {
  const project = new Project(former.host);
  const main = await project.create('db_several_prod', null);
  await asClient(former.host, 'direct', main, 'owner', BANK);
  const branch = await project.create('db_several_prod_pr_1', main.database);
  const move = new Move(project, main);
  await move.admit();
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
  await move.copy(there, branch, null);
  expect(await asClient(next.host, 'direct', branch, 'read_write', STATE)).toEqual([state]);
  await move.release();
  await asClient(former.host, 'direct', branch, 'read_write', TRANSFER);
  expect(await leftOvers()).toEqual(NOTHING);
});

test('a host with the pg_hba.conf of an earlier release says that it cannot remove a login, and has removed it', async () => {
  const project = new Project(former.host);
  const main = await project.create('db_earlier_prod', null);
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
  await eventually(async () => expect(await move.admit()).toMatchObject({ can_remove: true }));
  await move.release();
  await project.drop(main);
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
  project.revision += 1;
  await runOperation(former.host, 'access.apply', {
    project_id: project.id,
    access: { revision: project.revision, tenant: project.id, rules: [], closed: [main.branch_id] },
  });
  const closed = performance.now() - began;
  const cut = await run('follow.cutover', { job_id: move.job_id, writes_refused: true, is_compared: true });
  console.log(`closed in ${closed} ms, taken over in ${performance.now() - began} ms`);
  expect(cut.cut_over, JSON.stringify(cut.findings)).toMatchObject({ dropped_at_source: true });
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

test('a comparison finds a row that differs', async () => {
  const project = new Project(former.host);
  const main = await project.create('db_differing_prod', null);
  await asClient(former.host, 'direct', main, 'owner', BANK);
  const move = new Move(project, main);
  await move.admit();
  const there = new Project(next.host, undefined, project.id);
  const of = await move.copy(there, main, { slot: followName(project.id), publication: null });
  // What follows is read-only for its clients.
  await inSession(
    {
      ...{ host: next.settings.POSTGRES_SOCKET_DIR, port: next.settings.POSTGRES_PORT },
      ...{ user: PLATFORM_ROLE, database: main.database },
    },
    (session) => session.query('update account set balance = 1 where id = 7'),
  );
  const { compared, findings } = await runOperation(next.host, 'move.compare', {
    ...of,
    job_id: move.job_id,
  });
  expect(compared).toBeNull();
  expect(findings).toMatchObject([{ problem: 'rows', object: expect.stringContaining('account') }]);
  await runOperation(next.host, 'project.drop', { job_id: randomUUID(), project_id: project.id });
  await move.release();
  expect(await leftOvers()).toEqual(NOTHING);
});
