import { once } from 'node:events';
import { connect as connectSocket } from 'node:net';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { enforceAccess } from '../../../agent/access/enforce-access.ts';
import { storeAccess } from '../../../agent/access/store-access.ts';
import { recover } from '../../../agent/maintenance/recover.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { inTransaction } from '../../../agent/postgres/connect.ts';
import { withLocks } from '../../../agent/postgres/locks.ts';
import { makePassword, scramVerifier } from '../../../edge/crypto/scram.ts';
import { type BranchRole, loginName } from '../../../shared/branch/login.ts';
import { Access } from '../../../shared/protocol/access.ts';
import { eventually } from '../../support/eventually.ts';
import { targetOf } from '../../support/host/attempts.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type Branch, connect, type Port, Project, removeProjects } from '../../support/host/host-project.ts';
import { stalledLogin } from '../../support/host/stalled-login.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const HERE = [{ branch_id: null, cidr: '127.0.0.1/32' }];
const CONNECTIONS = [
  ['direct', 'owner'],
  ['direct', 'read_write'],
  ['direct', 'read_only'],
  ['pooled', 'owner'],
  ['pooled', 'read_write'],
  ['pooled', 'read_only'],
] as const satisfies [Port, BranchRole][];

export function describeEnforcedAccess(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;
  let branch: Branch;
  let clients: pg.Client[] = [];

  beforeAll(async () => {
    servers = host();
    project = new Project(servers.host, HERE);
    main = await project.create('db_access_prod', null);
    branch = await project.create('db_access_prod_br_one', main.database);
    const owner = await open('direct', 'owner');
    await owner.query('create table item (id int primary key); insert into item values (1)');
  });
  afterAll(() => removeProjects(servers));
  afterEach(async () => {
    await Promise.all(clients.map((client) => client.end()));
    clients = [];
    // Open to everybody who has the passwords.
    await apply({});
  });

  async function open(port: Port, role: BranchRole, of = branch): Promise<pg.Client> {
    const client = await connect(servers.host, port, of, role);
    clients.push(client);
    return client;
  }

  test('a project whose access cannot be enforced does not hold up the next one', async () => {
    const other = new Project(servers.host, HERE);
    await other.create('db_access_other', null);
    const [refused, next] = [project.id, other.id].sort();
    await servers.query('UPDATE project SET unenforced = project_id = ANY ($1)', [[refused, next]]);
    await servers.query(
      `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$;
     CREATE TRIGGER refuse BEFORE UPDATE ON project FOR EACH ROW WHEN (OLD.project_id = '${refused}')
     EXECUTE FUNCTION refuse()`,
    );
    try {
      expect((await recover(servers.host)).map(({ name }) => name)).toEqual(['enforceStoredAccess']);
      expect(await servers.query('SELECT project_id FROM project WHERE unenforced')).toEqual([
        { project_id: refused },
      ]);
    } finally {
      await servers.query('DROP FUNCTION refuse CASCADE');
    }
    expect(await recover(servers.host)).toEqual([]);
  });

  test('a process that was stopped while it enforced access holds up no other one', async () => {
    const enforce = (within: number) =>
      withLocks(servers.host.sessions, [], (session) =>
        enforceAccess(servers.host, session, project.id, within),
      );
    await withLocks(servers.host.sessions, [`access:${project.id}`], () =>
      expect(enforce(1)).rejects.toMatchObject({ code: 'HOST_BUSY' }),
    );
    await enforce(1);
  });

  const openAll = () => Promise.all(CONNECTIONS.map(([port, role]) => open(port, role)));

  const apply = (access: Partial<Access>) => {
    project.revision += 1;
    return runOperation(servers.host, 'access.apply', {
      project_id: project.id,
      access: { revision: project.revision, rules: HERE, ...access },
    });
  };

  /** Gives the branch's read-write login a new password. */
  async function rotate() {
    const password = makePassword();
    await apply({ verifiers: { [branch.branch_id]: { read_write: await scramVerifier(password) } } });
    branch.passwords.read_write = password;
  }

  /** The result of a statement: `ok`, an SQLSTATE, or `over` when the session has ended. */
  const run = (client: pg.Client, sql: string): Promise<string> =>
    client.query(sql).then(
      () => 'ok',
      (error: Error & { code?: string }) =>
        error.code && !/^(57P01|08|ECONNRESET|EPIPE)/.test(error.code) ? error.code : 'over',
    );
  const runAll = (clients: pg.Client[], sql = 'select 1') =>
    Promise.all(clients.map((client) => run(client, sql)));

  /** Which new connections are admitted. */
  const connectAll = () =>
    Promise.all(
      CONNECTIONS.map(([port, role]) =>
        open(port, role).then(
          () => 'in',
          () => 'out',
        ),
      ),
    );

  const over = (...ended: boolean[]) => ended.map((is) => (is ? 'over' : 'ok'));

  test('a closed branch admits no client and disconnects all; opened again, its credentials work', async () => {
    const sessions = await openAll();
    const neighbour = await open('pooled', 'read_write', main);
    await apply({ closed: [branch.branch_id] });
    expect(await runAll(sessions)).toEqual(Array(6).fill('over'));
    expect(await connectAll()).toEqual(Array(6).fill('out'));
    expect(await run(neighbour, 'select 1')).toBe('ok');
    await apply({});
    expect(await connectAll()).toEqual(Array(6).fill('in'));
  });

  test('a session in a transaction is ended too', async () => {
    const sessions = [await open('direct', 'owner'), await open('pooled', 'read_write')];
    expect(await runAll(sessions, 'begin; select * from item for share')).toEqual(['ok', 'ok']);
    await apply({ closed: [branch.branch_id] });
    expect(await runAll(sessions)).toEqual(['over', 'over']);
  });

  test('new passwords: the old ones are rejected and their sessions ended; the other login is not affected', async () => {
    const sessions = await openAll();
    const fresh = { owner: makePassword(), read_write: makePassword() };
    const verifiers = {
      owner: await scramVerifier(fresh.owner),
      read_write: await scramVerifier(fresh.read_write),
    };
    await apply({ verifiers: { [branch.branch_id]: verifiers } });
    const results = await runAll(sessions);
    // Pooled clients are disconnected by database, so the read-only one has to reconnect.
    expect(results).toEqual(over(true, true, false, true, true, true));
    expect(await connectAll()).toEqual(['out', 'out', 'in', 'out', 'out', 'in']);
    Object.assign(branch.passwords, fresh);
    expect(await connectAll()).toEqual(Array(6).fill('in'));
    // A retry with the same revision ends no session.
    const reconnected = await openAll();
    await runOperation(servers.host, 'access.apply', {
      project_id: project.id,
      access: { revision: project.revision, rules: HERE, verifiers: { [branch.branch_id]: verifiers } },
    });
    expect(await runAll(reconnected)).toEqual(Array(6).fill('ok'));
  });

  test('write block: owners write and others read, on open sessions too, even if they change settings', async () => {
    const sessions = await openAll();
    const write = 'update item set id = id';
    await apply({ write_blocked: true });
    expect(await runAll(sessions, 'select count(*) from item')).toEqual(Array(6).fill('ok'));
    await runAll(sessions, 'set default_transaction_read_only = off; set transaction_read_only = off');
    const blocked = ['ok', '42501', '42501', 'ok', '42501', '42501'];
    expect(await runAll(sessions, write)).toEqual(blocked);
    const during = await openAll();
    expect(await runAll(during, write)).toEqual([
      'ok',
      '25006',
      '25006',
      'ok',
      expect.stringMatching(/25006|42501/),
      expect.stringMatching(/25006|42501/),
    ]);
    // A branch created now is blocked too.
    project.restrictions = { write_blocked: true };
    const later = await project.create('db_access_prod_br_two', main.database);
    project.restrictions = {};
    const byDefault = async (role: BranchRole, of: Branch) =>
      (await (await open('direct', role, of)).query('show transaction_read_only')).rows[0]
        .transaction_read_only;
    expect(await byDefault('read_write', later)).toBe('on');
    // The read-only login is read-only by default too, and neither fills temporary tables.
    for (const of of [branch, later]) {
      expect(await byDefault('read_only', of)).toBe('on');
      const others = [await open('direct', 'read_write', of), await open('pooled', 'read_only', of)];
      const fill = 'set transaction_read_only = off; create temp table hoard as select 1';
      await runAll(others, 'set default_transaction_read_only = off');
      expect(await runAll(others, fill)).toEqual(['42501', '42501']);
      expect(await run(await open('direct', 'owner', of), fill)).toBe('ok');
    }
    expect(await recover(servers.host)).toEqual([]);
    expect(await run(await open('direct', 'read_only', later), 'create temp table hoard ()')).toBe('25006');

    await apply({});
    const [, lasting] = sessions;
    expect(await run(lasting as pg.Client, write)).toBe('ok');
    expect(await runAll(await openAll(), write)).toEqual(['ok', 'ok', '42501', 'ok', 'ok', '42501']);
    // Sessions that began during the block would stay read-only, so they are ended.
    expect(await runAll([during[1], during[2]] as pg.Client[])).toEqual(['over', 'over']);
    for (const role of ['read_write', 'read_only'] as const)
      expect(await run(await open('direct', role, later), 'create temp table hoard ()')).toBe('ok');
  });

  test('logins that may write tables may write large objects, in clones too', async () => {
    const sessions = await openAll();
    const write = "select lo_from_bytea(0, 'x'), lo_create(0)";
    const mayWrite = ['ok', 'ok', '42501', 'ok', 'ok', '42501'];
    await runAll(sessions, 'set default_transaction_read_only = off');
    expect(await runAll(sessions, write)).toEqual(mayWrite);
    await apply({ write_blocked: true });
    expect(await runAll(sessions, write)).toEqual(['ok', '42501', '42501', 'ok', '42501', '42501']);
    await apply({});
    expect(await runAll(sessions, write)).toEqual(mayWrite);
  });

  test('a removed rule ends the sessions from its network', async () => {
    const sessions = await openAll();
    const neighbour = await open('direct', 'read_write', main);
    await apply({ rules: [{ branch_id: main.branch_id, cidr: '127.0.0.1/32' }] });
    expect(await runAll(sessions)).toEqual(Array(6).fill('over'));
    expect(await run(neighbour, 'select 1')).toBe('ok');
  });

  test.runIf(IS_NIGHTLY)(
    'a login of another project that stalls is left alone; those of the project are ended',
    async () => {
      const neighbour = new Project(servers.host, HERE);
      const theirs = await neighbour.create('db_access_neighbour', null);
      const stall = (of: Branch) => stalledLogin(targetOf(servers, 'direct', of));
      const other = await stall(theirs);
      const own = await Promise.all(Array.from({ length: 20 }, () => stall(branch)));
      await rotate();
      await eventually(async () => expect(own.every(({ closed }) => closed)).toBe(true));
      expect(other.closed).toBe(false);
      other.destroy();
    },
  );

  test('a client that connected before its rule was removed cannot log in afterwards', async () => {
    const socket = connectSocket({ host: '127.0.0.1', port: servers.settings.POSTGRES_PORT });
    await once(socket, 'connect');
    await apply({ rules: [] });
    const stream = Object.assign(socket, { connect: () => process.nextTick(() => socket.emit('connect')) });
    const late = new pg.Client({
      ...targetOf(servers, 'direct', branch),
      ssl: { rejectUnauthorized: false },
      stream: () => stream,
    });
    late.on('error', () => {});
    clients.push(late);
    await expect(late.connect()).rejects.toThrow('no pg_hba.conf entry');
  });

  test('an agent that died before it ended the sessions ends them at its next start', async () => {
    const sessions = await openAll();
    const session = await servers.host.sessions.connect();
    project.revision += 1;
    await inTransaction(session, () =>
      storeAccess(
        session,
        project.id,
        Access.parse({ revision: project.revision, rules: HERE, closed: [branch.branch_id] }),
      ),
    );
    session.release();
    expect(await runAll(sessions)).toEqual(Array(6).fill('ok'));
    expect(await recover(servers.host)).toEqual([]);
    await eventually(async () => expect(await runAll(sessions)).toEqual(Array(6).fill('over')));
  });

  test('settings of a branch that were stored before a kill are in effect after the next start', async () => {
    const shown = async () => {
      const { rows } = await (await open('direct', 'owner')).query<{ found: string[] }>(
        "select array[current_setting('lock_timeout'), current_setting('statement_timeout')] as found",
      );
      return rows[0]?.found;
    };
    const before = await shown();
    // A zone that this server does not know holds up nothing else.
    const settings = { lock_timeout: '7s', statement_timeout: '8s', TimeZone: 'Nowhere/Town' };
    const session = await servers.host.sessions.connect();
    project.revision += 1;
    const access = { revision: project.revision, rules: HERE };
    await inTransaction(session, () =>
      storeAccess(session, project.id, {
        ...Access.parse(access),
        settings: { [branch.branch_id]: settings },
      }),
    );
    session.release();
    expect(await shown()).toEqual(before);
    expect(await recover(servers.host)).toEqual([]);
    expect(await shown()).toEqual(['7s', '8s']);
    await apply({});
    expect(await shown()).toEqual(before);
  });

  test('pooled clients of a database with the longest name are disconnected', async () => {
    const name = `db_access_prod_br_${'long-name-'.repeat(5)}`.slice(0, 63).replace(/-$/, 'x');
    const long = await project.create(name, main.database);
    const sessions = [await open('pooled', 'read_write', long), await open('direct', 'read_write', long)];
    await apply({
      verifiers: { [long.branch_id]: { read_write: await scramVerifier(makePassword()) } },
    });
    expect(await runAll(sessions)).toEqual(['over', 'over']);
    expect(name).toHaveLength(63);
  });

  test('clients of another branch are not affected', async () => {
    const neighbour = await open('pooled', 'read_write', main);
    const results: string[] = [];
    let running = true;
    const busy = (async () => {
      while (running) results.push(await run(neighbour, 'select 1'));
    })();
    await rotate();
    await apply({ closed: [branch.branch_id] });
    running = false;
    await busy;
    expect(new Set(results)).toEqual(new Set(['ok']));
  });

  test('a login that changes its own settings is restored', async () => {
    const session = await open('direct', 'read_write');
    await apply({ write_blocked: true });
    const login = loginName(branch.branch_id, 'read_write');
    expect(await run(session, `alter role "${login}" set default_transaction_read_only = off`)).toBe('ok');
    await runOperation(servers.host, 'host.inventory', {});
    const [row] = await servers.query<{ rolconfig: string[] }>(
      'select rolconfig from pg_roles where rolname = $1',
      [login],
    );
    expect(row?.rolconfig).toContain('default_transaction_read_only=on');
  });

  test('a repeated revision adds no rules of a branch that was dropped meanwhile', async () => {
    const gone = await project.create('db_access_prod_br_gone', null);
    const access = {
      revision: project.revision + 1,
      rules: [...HERE, { ...HERE[0], branch_id: gone.branch_id }],
    };
    await apply(access as Partial<Access>);
    await project.drop(gone);
    await runOperation(servers.host, 'access.apply', {
      project_id: project.id,
      access,
    });
    const stored = await servers.query('SELECT branch_id FROM network_rule WHERE project_id = $1', [
      project.id,
    ]);
    expect(stored).toEqual([{ branch_id: null }]);
  });
}
