import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { storeAccess } from '../../../agent/access/store-access.ts';
import { recover } from '../../../agent/maintenance/recover.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { inTransaction } from '../../../agent/postgres/connect.ts';
import { makePassword, scramVerifier } from '../../../edge/credentials/password.ts';
import { type BranchRole, loginName } from '../../../shared/branch/login.ts';
import type { Params } from '../../../shared/protocol/operations.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, connect, type Port, Project } from '../../support/host/host-project.ts';

const HERE = [{ branch_id: null, cidr: '127.0.0.1/32' }];
const CONNECTIONS = [
  ['direct', 'owner'],
  ['direct', 'read_write'],
  ['direct', 'read_only'],
  ['pooled', 'owner'],
  ['pooled', 'read_write'],
  ['pooled', 'read_only'],
] as const satisfies [Port, BranchRole][];

let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers.stop());

let project: Project;
let main: Branch;
let branch: Branch;
let clients: pg.Client[] = [];
let made = 0;

beforeEach(async () => {
  project = new Project(servers.host, HERE);
  made += 1;
  main = await project.create(`db_access${made}_prod`, null);
  branch = await project.create(`db_access${made}_prod_br_one`, main.database);
  const owner = await open('direct', 'owner');
  await owner.query('create table note (id int primary key); insert into note values (1)');
  return async () => {
    await Promise.all(clients.map((client) => client.end()));
    clients = [];
  };
});

async function open(port: Port, role: BranchRole, of = branch): Promise<pg.Client> {
  const client = await connect(servers.host, port, of, role);
  clients.push(client);
  return client;
}

const openAll = () => Promise.all(CONNECTIONS.map(([port, role]) => open(port, role)));

type Access = Params<'access.apply'>['access'];
const apply = (access: Partial<Access>) => {
  project.revision += 1;
  return runOperation(servers.host, 'access.apply', {
    project_id: project.id,
    access: { revision: project.revision, rules: HERE, ...access },
  });
};

/** What the client says: `ok`, an SQLSTATE, or that its session is over. */
const ask = (client: pg.Client, sql: string): Promise<string> =>
  client.query(sql).then(
    () => 'ok',
    (error: Error & { code?: string }) =>
      error.code && !/^(57P01|08)/.test(error.code) ? error.code : 'over',
  );
const askAll = (asked: pg.Client[], sql = 'select 1') => Promise.all(asked.map((client) => ask(client, sql)));

/** Who gets in anew. */
const knock = () =>
  Promise.all(
    CONNECTIONS.map(([port, role]) =>
      open(port, role).then(
        () => 'in',
        () => 'out',
      ),
    ),
  );

const over = (...ended: boolean[]) => ended.map((is) => (is ? 'over' : 'ok'));

test('a closed branch lets nobody in and nobody stay; opened again, its credentials work', async () => {
  const inside = await openAll();
  const neighbour = await open('pooled', 'read_write', main);
  await apply({ closed: [branch.branch_id] });
  expect(await askAll(inside)).toEqual(Array(6).fill('over'));
  expect(await knock()).toEqual(Array(6).fill('out'));
  expect(await ask(neighbour, 'select 1')).toBe('ok');
  await apply({});
  expect(await knock()).toEqual(Array(6).fill('in'));
});

test('a session in the middle of a transaction is ended too', async () => {
  const inside = [await open('direct', 'owner'), await open('pooled', 'read_write')];
  expect(await askAll(inside, 'begin; select * from note for share')).toEqual(['ok', 'ok']);
  await apply({ closed: [branch.branch_id] });
  expect(await askAll(inside)).toEqual(['over', 'over']);
});

test('new passwords: the old ones are refused and their sessions ended, the other login stays', async () => {
  const inside = await openAll();
  const old = { ...branch.passwords };
  const fresh = { owner: makePassword(), read_write: makePassword() };
  const verifiers = {
    owner: await scramVerifier(fresh.owner),
    read_write: await scramVerifier(fresh.read_write),
  };
  await apply({ verifiers: { [branch.branch_id]: verifiers } });
  const answers = await askAll(inside);
  // The console ends a whole database's pooled clients, so the read-only one has to come again.
  expect(answers).toEqual(over(true, true, false, true, true, true));
  expect(await knock()).toEqual(['out', 'out', 'in', 'out', 'out', 'in']);
  branch.passwords = { ...old, ...fresh };
  expect(await knock()).toEqual(Array(6).fill('in'));
  // The same revision again, as a retry brings it, ends nobody.
  const anew = await openAll();
  await runOperation(servers.host, 'access.apply', {
    project_id: project.id,
    access: { revision: project.revision, rules: HERE, verifiers: { [branch.branch_id]: verifiers } },
  });
  expect(await askAll(anew)).toEqual(Array(6).fill('ok'));
});

test('write block: owners write, the others read, on open sessions too, whatever they set', async () => {
  const inside = await openAll();
  const write = 'update note set id = id';
  await apply({ write_blocked: true });
  expect(await askAll(inside, 'select count(*) from note')).toEqual(Array(6).fill('ok'));
  await askAll(inside, 'set default_transaction_read_only = off; set transaction_read_only = off');
  const blocked = ['ok', '42501', '42501', 'ok', '42501', '42501'];
  expect(await askAll(inside, write)).toEqual(blocked);
  const during = await openAll();
  expect(await askAll(during, write)).toEqual([
    'ok',
    '25006',
    '42501',
    'ok',
    expect.stringMatching(/25006|42501/),
    '42501',
  ]);
  // A branch that is made now is blocked too.
  project.restrictions = { write_blocked: true };
  const later = await project.create(`db_access${made}_prod_br_two`, main.database);
  const { rows } = await (await open('direct', 'read_write', later)).query('show transaction_read_only');
  expect(rows).toEqual([{ transaction_read_only: 'on' }]);

  await apply({});
  const [, lasting] = inside;
  expect(await ask(lasting as pg.Client, write)).toBe('ok');
  expect(await askAll(await openAll(), write)).toEqual(['ok', 'ok', '42501', 'ok', 'ok', '42501']);
  // Those that began in the block would only read for ever: they come again.
  expect(await ask(during[1] as pg.Client, write)).toBe('over');
});

test('large objects are written by those who may write tables, in a clone as in main', async () => {
  const inside = await openAll();
  const write = "select lo_from_bytea(0, 'x'), lo_create(0)";
  const mayWrite = ['ok', 'ok', '42501', 'ok', 'ok', '42501'];
  await askAll(inside, 'set default_transaction_read_only = off');
  expect(await askAll(inside, write)).toEqual(mayWrite);
  await apply({ write_blocked: true });
  expect(await askAll(inside, write)).toEqual(['ok', '42501', '42501', 'ok', '42501', '42501']);
  await apply({});
  expect(await askAll(inside, write)).toEqual(mayWrite);
});

test('a removed rule ends the sessions from there', async () => {
  const inside = await openAll();
  const neighbour = await open('direct', 'read_write', main);
  await apply({ rules: [{ branch_id: main.branch_id, cidr: '127.0.0.1/32' }] });
  expect(await askAll(inside)).toEqual(Array(6).fill('over'));
  expect(await ask(neighbour, 'select 1')).toBe('ok');
});

test('an agent that died before it ended the sessions does so at its start', async () => {
  const inside = await openAll();
  const session = await servers.host.sessions.connect();
  await inTransaction(session, () =>
    storeAccess(session, project.id, {
      revision: 9,
      rules: HERE,
      write_blocked: false,
      closed: [branch.branch_id],
      verifiers: {},
    }),
  );
  session.release();
  expect(await askAll(inside)).toEqual(Array(6).fill('ok'));
  expect(await recover(servers.host)).toEqual([]);
  await eventually(async () => expect(await askAll(inside)).toEqual(Array(6).fill('over')));
});

test('a name too long for the console: its pooled clients go all the same', async () => {
  const name = `db_access${made}_prod_br_${'long-name-'.repeat(5)}`.slice(0, 63).replace(/-$/, 'x');
  const long = await project.create(name, main.database);
  const inside = [await open('pooled', 'read_write', long), await open('direct', 'read_write', long)];
  await apply({
    verifiers: { [long.branch_id]: { read_write: await scramVerifier(makePassword()) } },
  });
  expect(await askAll(inside)).toEqual(['over', 'over']);
  expect(name).toHaveLength(63);
});

test('clients of a neighbour are not disturbed', async () => {
  const neighbour = await open('pooled', 'read_write', main);
  const answers: string[] = [];
  let going = true;
  const busy = (async () => {
    while (going) answers.push(await ask(neighbour, 'select 1'));
  })();
  const verifiers = { [branch.branch_id]: { read_write: await scramVerifier(makePassword()) } };
  await apply({ verifiers });
  await apply({ closed: [branch.branch_id] });
  going = false;
  await busy;
  expect(new Set(answers)).toEqual(new Set(['ok']));
});

test('a login that changes its own password or rights to come back is put right', async () => {
  const session = await open('direct', 'read_write');
  await apply({ write_blocked: true });
  const login = loginName(branch.branch_id, 'read_write');
  expect(await ask(session, `alter role "${login}" set default_transaction_read_only = off`)).toBe('ok');
  await runOperation(servers.host, 'host.inventory', {});
  const [row] = await servers.query<{ rolconfig: string[] }>(
    'select rolconfig from pg_roles where rolname = $1',
    [login],
  );
  expect(row?.rolconfig).toContain('default_transaction_read_only=on');
});

test('rules that come once more bring none of a branch that was dropped meanwhile', async () => {
  const access = {
    revision: project.revision + 1,
    rules: [...HERE, { ...HERE[0], branch_id: branch.branch_id }],
  };
  await apply(access as Partial<Access>);
  await project.drop(branch);
  await runOperation(servers.host, 'access.apply', {
    project_id: project.id,
    access: { ...access, write_blocked: false, closed: [], verifiers: {} } as Access,
  });
  const kept = await servers.query('SELECT branch_id FROM network_rule WHERE project_id = $1', [project.id]);
  expect(kept).toEqual([{ branch_id: null }]);
});
