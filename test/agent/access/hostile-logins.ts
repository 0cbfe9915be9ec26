import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { storeAccess } from '../../../agent/access/store-access.ts';
import { recover } from '../../../agent/maintenance/recover.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { withAdminConsole } from '../../../agent/pooler/admin-console.ts';
import { inTransaction } from '../../../agent/postgres/connect.ts';
import { withLocks } from '../../../agent/postgres/locks.ts';
import { makePassword, scramVerifier } from '../../../edge/crypto/scram.ts';
import { BRANCH_ROLES, loginName, queryLoginName } from '../../../shared/branch/login.ts';
import { Access } from '../../../shared/protocol/access.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  connect,
  type Port,
  Project,
  removeProjects,
} from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';

const HERE = [{ branch_id: null, cidr: '127.0.0.1/32' }];

export function describeHostileLogins(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let branch: Branch;
  let self: string;
  /** Of another project. */
  let neighbour: Branch;
  /** Of the passwords that `branch` has. */
  let verifiers: Access['verifiers'];

  beforeAll(async () => {
    servers = host();
    project = new Project(servers.host, HERE);
    branch = await project.create('db_hostile_prod', null);
    self = loginName(branch.branch_id, 'read_write');
    neighbour = await new Project(servers.host, HERE).create('db_hostile_neighbour', null);
    const ofRoles = BRANCH_ROLES.map(async (role) => [role, await scramVerifier(branch.passwords[role])]);
    verifiers = { [branch.branch_id]: Object.fromEntries(await Promise.all(ofRoles)) };
  });
  afterAll(() => removeProjects(servers));
  // The branch is open and has its passwords, whatever a test did.
  afterEach(() => apply({ verifiers }));

  const next = (access: Partial<Access>): Access => {
    project.revision += 1;
    return Access.parse({ revision: project.revision, rules: HERE, ...access });
  };
  const apply = (access: Partial<Access>) =>
    runOperation(servers.host, 'access.apply', { project_id: project.id, access: next(access) });
  const rotation = async (of = branch) => ({
    verifiers: { [of.branch_id]: { read_write: await scramVerifier(makePassword()) } },
  });

  const isAlive = (client: pg.Client) =>
    client.query('select 1').then(
      () => true,
      () => false,
    );

  test.for(firstByDay(1, ['password null', 'set default_transaction_read_only = off']))(
    'a login with an open transaction that contains: alter role … %s',
    async (change) => {
      const holder = await connect(servers.host, 'direct', branch, 'read_write');
      // The login now differs from its stored state, so every check tries to restore it.
      await holder.query(`alter role "${self}" password 'mine'`);
      await holder.query(`begin; alter role "${self}" ${change}`);
      const other = new Project(servers.host, HERE);
      const dropped = await other.create('db_hostile_other', null);
      await runOperation(servers.host, 'host.inventory', {});
      expect(await other.drop(dropped)).toEqual({ dropped: true });

      await holder.end();

      const again = await connect(servers.host, 'direct', branch, 'read_write');
      await again.query(`begin; alter role "${self}" ${change}`);
      await apply({ write_blocked: true, closed: [branch.branch_id] });
      expect(await isAlive(again)).toBe(false);
    },
  );

  test('a login gains no right from its networks, and joins no other', async () => {
    const other = new Project(servers.host, [{ branch_id: null, cidr: '192.0.2.0/24' }]);
    const foreignBranch = await other.create('db_hostile_other', null);
    const roleOf = async ({ id }: Project) =>
      (await servers.query<{ role: string }>('SELECT role FROM network WHERE project_id = $1', [id]))[0]
        ?.role;
    const own = await roleOf(project);
    const foreign = await roleOf(other);
    const owner = await connect(servers.host, 'direct', branch, 'owner');
    // A tenant can name the role, but what it grants to it reaches no login.
    await owner.query(`create table granted (); grant all on granted to "${own}", "${foreign}"`);
    for (const role of ['owner', 'read_write', 'read_only'] as const) {
      const login = loginName(branch.branch_id, role);
      const client = await connect(servers.host, 'direct', branch, role);
      await client.query('set role none');
      for (const network of [own, foreign])
        for (const attack of [
          `set role "${network}"`,
          `set session authorization "${network}"`,
          `grant "${network}" to "${login}"`,
          `grant "${network}" to "${login}" with inherit true, set true`,
          `revoke "${network}" from "${loginName(foreignBranch.branch_id, 'owner')}"`,
          `alter role "${network}" login`,
          `alter role "${network}" set work_mem = '1MB'`,
          `drop role "${network}"`,
          `drop owned by "${network}"`,
          `reassign owned by "${network}" to current_user`,
          `comment on role "${network}" is 'mine'`,
        ])
          await expect(client.query(attack), attack).rejects.toMatchObject({ code: '42501' });
      const { rows } = await client.query(
        `select pg_has_role($1, 'member') as admitted, pg_has_role($1, 'usage') or pg_has_role($1, 'set') as more,
              pg_has_role($2, 'member') as elsewhere`,
        [own, foreign],
      );
      expect(rows).toEqual([{ admitted: true, more: false, elsewhere: false }]);
      await client.end();
    }
    await owner.end();
    expect(await other.drop(foreignBranch)).toEqual({ dropped: true });
  });

  test('a login enters neither the database of another tenant nor one under construction', async () => {
    const build = `bgjob_${'0'.repeat(32)}`;
    await servers.query(`CREATE DATABASE ${build}`);
    const enter = (database: string) =>
      connect(servers.host, 'direct', branch, 'owner', database).then(
        () => 'in',
        (error: Error) => error.message,
      );
    expect(await enter(neighbour.database)).toMatch(/^permission denied for database/);
    for (const database of [build, 'postgres', 'template1', 'branchgate'])
      expect(await enter(database)).toMatch(/^no pg_hba.conf entry/);
    await servers.query(`DROP DATABASE ${build}`);
  });

  test('an open transaction that names a dropped login blocks no other operation', async () => {
    const other = new Project(servers.host, HERE);
    const dropped = await other.create('db_hostile_other', null);
    const login = loginName(dropped.branch_id, 'read_only');
    const holder = await connect(servers.host, 'direct', branch, 'owner');
    await holder.query(`begin; create table item (); grant select on item to "${login}"`);
    expect(await other.drop(dropped)).toEqual({ dropped: true });
    await holder.query('rollback');
    await holder.end();
    const roles = 'SELECT rolname, rolcanlogin FROM pg_roles WHERE rolname = $1';
    expect(await servers.query(roles, [login])).toEqual([{ rolname: login, rolcanlogin: false }]);
    await runOperation(servers.host, 'host.inventory', {});
    expect(await servers.query(roles, [login])).toEqual([]);
  });

  test.for(firstByDay<Port>(1, ['pooled', 'direct']))(
    'a login that constantly sets its password loses it by a rotation (%s)',
    async (port) => {
      const mine = { ...branch, passwords: { ...branch.passwords, read_write: 'mine' } };
      const connected: pg.Client[] = [];
      let running = true;
      const attack = async (client: pg.Client) => {
        connected.push(client);
        // A statement that runs until its session ends, also without its client.
        await client
          .query(
            `do $$ begin loop
             alter role "${self}" password 'mine'; commit;
           end loop; end $$`,
          )
          .catch(() => {});
      };
      const sessions = await Promise.all(
        Array.from({ length: 3 }, () => connect(servers.host, port, branch, 'read_write')),
      );
      const lanes = sessions.map(async (session) => {
        await attack(session);
        while (running)
          await connect(servers.host, 'direct', mine, 'read_write').then(attack, () => sleep(5));
      });
      await sleep(100);
      const access = await rotation();
      await apply(access);
      const [login] = await servers.query<{ rolpassword: string; rolcanlogin: boolean }>(
        'SELECT rolpassword, rolcanlogin FROM pg_authid WHERE rolname = $1',
        [self],
      );
      const left = await servers.query('SELECT FROM pg_stat_activity WHERE usename = $1', [self]);
      running = false;
      for (const client of connected) await client.end().catch(() => {});
      await Promise.all(lanes);
      expect(login).toEqual({
        rolpassword: access.verifiers[branch.branch_id]?.read_write,
        rolcanlogin: true,
      });
      expect(left).toEqual([]);
    },
  );

  test('a replaced password stays visible to the rotation, whatever else restores logins', async () => {
    const access = next(await rotation());
    const session = await servers.host.sessions.connect();
    await inTransaction(session, () => storeAccess(session, project.id, access));
    session.release();
    const password = async () =>
      (
        await servers.query<{ rolpassword: string }>('SELECT rolpassword FROM pg_authid WHERE rolname = $1', [
          self,
        ])
      )[0]?.rolpassword;
    await servers.query(`ALTER ROLE "${self}" PASSWORD 'mine'`);
    const replaced = await password();
    await runOperation(servers.host, 'host.inventory', {});
    expect(await password()).toBe(replaced);
    await recover(servers.host);
    expect(await password()).toBe(access.verifiers[branch.branch_id]?.read_write);
  });

  test('a function that a login owns does not let others hold the login up', async () => {
    const owner = loginName(branch.branch_id, 'owner');
    const planting = await connect(servers.host, 'direct', branch, 'owner');
    await planting.query('create schema shared; grant all on schema shared to public; set role none');
    const planted = 'create function shared.replace() returns void language sql security definer as';
    await planting.query(`${planted} $$ alter role "${owner}" password 'mine' $$`);
    await planting.end();
    const holder = await connect(servers.host, 'direct', branch, 'read_write');
    await holder.query('begin; select shared.replace()');
    const loop = await connect(servers.host, 'direct', branch, 'read_write');
    const looping = loop
      .query(`do $$ begin loop perform shared.replace(); commit; end loop; end $$`)
      .catch(() => {});
    const verifier = await scramVerifier(makePassword());
    await apply({ verifiers: { [branch.branch_id]: { owner: verifier } } });
    const [login] = await servers.query('SELECT rolpassword, rolcanlogin FROM pg_authid WHERE rolname = $1', [
      owner,
    ]);
    expect(login).toEqual({ rolpassword: verifier, rolcanlogin: true });
    expect([await isAlive(holder), await isAlive(loop)]).toEqual([false, false]);
    await looping;
    for (const client of [holder, loop]) await client.end().catch(() => {});
  });

  test('a login that constantly alters itself is closed nevertheless', async () => {
    let running = true;
    // All sessions are opened before the first changes the password.
    const sessions = await Promise.all(
      Array.from({ length: 6 }, () => connect(servers.host, 'direct', branch, 'read_write')),
    );
    const lanes = sessions.map(async (client) => {
      while (running && (await isAlive(client))) {
        await client.query(`alter role "${self}" password 'mine'`).catch(() => {});
      }
      await client.end().catch(() => {});
    });
    await sleep(100);
    await apply({ closed: [branch.branch_id] });
    running = false;
    await Promise.all(lanes);
  });

  test('clients that constantly try an old password are not connected after its rotation', async () => {
    const old = { ...branch, passwords: { ...branch.passwords } };
    const connected: pg.Client[] = [];
    let running = true;
    const lanes = Array.from({ length: 4 }, async () => {
      while (running) {
        const client = await connect(servers.host, 'pooled', old, 'read_write').catch(() => null);
        if (client && connected.push(client) > 40) await connected.shift()?.end();
      }
    });
    await eventually(async () => expect(connected).not.toEqual([]));
    await apply(await rotation());
    running = false;
    await Promise.all(lanes);
    const alive = await Promise.all(connected.map(isAlive));
    expect(alive.length).toBeGreaterThan(0);
    expect(alive.filter(Boolean)).toEqual([]);
  });

  /** Starts a login that pauses in the SCRAM exchange until `resume` is called. */
  async function logInSlowly(port: Port, of = branch) {
    const { settings } = servers.host;
    const client = new pg.Client({
      host: '127.0.0.1',
      port: port === 'direct' ? settings.POSTGRES_PORT : settings.POOLER_PORT,
      database: of.database,
      user: loginName(of.branch_id, 'read_write'),
      password: of.passwords.read_write,
      ssl: { rejectUnauthorized: false },
    }) as pg.Client & { _handleAuthSASLContinue: (message: unknown) => Promise<void> };
    client.on('error', () => {});
    const reached = Promise.withResolvers<void>();
    const gate = Promise.withResolvers<void>();
    const proceed = client._handleAuthSASLContinue.bind(client);
    client._handleAuthSASLContinue = async (message) => {
      reached.resolve();
      await gate.promise;
      return proceed(message);
    };
    const outcome = client.connect().then(
      () => isAlive(client),
      () => false,
    );
    await reached.promise;
    return { resume: gate.resolve, outcome };
  }

  test('a login in progress on the direct port does not survive a rotation', async () => {
    const { resume, outcome } = await logInSlowly('direct');
    await apply(await rotation());
    resume();
    expect(await outcome).toBe(false);
  });

  const CHANGES: Record<string, (of: Branch) => Promise<unknown>> = {
    'its password is rotated': async (of) => apply(await rotation(of)),
    'its branch is closed': (of) => apply({ closed: [of.branch_id] }),
    'the rule that admitted it is removed': () => apply({ rules: [] }),
    'its branch is dropped': (of) => project.drop(of),
    'the agent dies during a rotation and starts again': async (of) => {
      const access = next(await rotation(of));
      await withLocks(servers.host.sessions, [], (session) =>
        inTransaction(session, () => storeAccess(session, project.id, access)),
      );
      await recover(servers.host);
    },
  };

  test.for(firstByDay(2, Object.keys(CHANGES)))(
    'a login in progress on the pooled port fails when %s',
    async (change) => {
      const changed = await project.create('db_hostile_prod_br_changed', branch.database);
      const other = new Project(servers.host, HERE);
      const newcomer = await other.create('db_hostile_newcomer', null);
      // PgBouncer may free the login's pool and reuse its memory for the next pool.
      const { resume, outcome } = await logInSlowly('pooled', changed);
      await CHANGES[change]?.(changed);
      const newcomers = [
        await connect(servers.host, 'pooled', newcomer, 'owner'),
        await connect(servers.host, 'pooled', newcomer, 'read_only'),
      ];
      resume();
      expect(await outcome).toBe(false);
      expect(await Promise.all(newcomers.map(isAlive))).toEqual([true, true]);
      for (const client of newcomers) await client.end();
      await Promise.all([project.drop(changed), other.drop(newcomer)]);
    },
  );

  test('the temporary login timeout is reset', async () => {
    const { outcome } = await logInSlowly('pooled');
    await apply(await rotation());
    expect(await outcome).toBe(false);
    const { rows } = await withAdminConsole(servers.host.settings, (console) =>
      console.query<{ key: string; value: string }>('SHOW CONFIG'),
    );
    expect(rows.find(({ key }) => key === 'client_login_timeout')?.value).toBe('15');
  });

  test('access stored while older access is enforced is enforced too', async () => {
    const { host } = servers;
    const { rules } = host;
    const newer = next(await rotation());
    const older = { ...newer, revision: newer.revision, ...(await rotation()) };
    newer.revision += 1;
    const syncAndStore = async () => {
      await rules.sync();
      const session = await host.sessions.connect();
      await inTransaction(session, () => storeAccess(session, project.id, newer));
      session.release();
    };
    const interrupted = {
      ...host,
      rules: Object.assign(Object.create(rules), {
        sync: syncAndStore,
        withhold: rules.withhold.bind(rules),
      }),
    };
    await runOperation(interrupted, 'access.apply', { project_id: project.id, access: older });
    const pending = await servers.query<{ login: string; unenforced: boolean }>(
      'SELECT login, unenforced FROM login JOIN branch USING (branch_id) JOIN project USING (project_id) WHERE end_from IS NOT NULL ORDER BY login',
    );
    const query = queryLoginName(branch.branch_id);
    expect(pending.map(({ login }) => login)).toEqual([query, self]);
    expect(pending.every(({ unenforced }) => unenforced)).toBe(true);
    project.revision = newer.revision;
  });

  test('a branch that is closed while its pooled clients are disconnected stays closed', async () => {
    const name = `db_hostile_prod_br_${'long-name-'.repeat(5)}`.slice(0, 63).replace(/-$/, 'x');
    const long = await project.create(name, branch.database);
    const { host } = servers;
    const closing = next({ closed: [long.branch_id] });
    const rotating = {
      ...closing,
      closed: [],
      verifiers: { [long.branch_id]: { read_write: await scramVerifier(makePassword()) } },
    };
    closing.revision += 1;
    const { sync } = host.rules;
    const client = await connect(host, 'pooled', long, 'read_write');
    client.on('error', () => {});
    let syncs = 0;
    host.rules.sync = async () => {
      await sync.call(host.rules);
      syncs += 1;
      // The first sync removes the pooler's entry, the second adds it again.
      if (syncs !== 1) return;
      const session = await host.sessions.connect();
      await inTransaction(session, () => storeAccess(session, project.id, closing));
      session.release();
    };
    try {
      await runOperation(host, 'access.apply', { project_id: project.id, access: rotating });
    } finally {
      host.rules.sync = sync;
      await client.end().catch(() => {});
    }
    project.revision = closing.revision;
    expect(syncs).toBe(2);
    expect(await servers.query('SELECT closed FROM branch WHERE branch_id = $1', [long.branch_id])).toEqual([
      { closed: true },
    ]);
  });

  test('a rotation reloads the pooler once if the branch has no client there', async () => {
    const { host } = servers;
    const rotating = next(await rotation());
    const { sync } = host.rules;
    let syncs = 0;
    host.rules.sync = async () => {
      syncs += 1;
      await sync.call(host.rules);
    };
    try {
      await runOperation(host, 'access.apply', { project_id: project.id, access: rotating });
    } finally {
      host.rules.sync = sync;
    }
    expect(syncs).toBe(1);
    await expect(connect(host, 'pooled', branch, 'read_write')).rejects.toThrow(/authentication failed/);
  });

  /** What would keep rows, WAL or ids of the whole host, and outlives its session. */
  const LASTING = [
    ["BEGIN; PREPARE TRANSACTION 'forgotten'", '55000'],
    ["SELECT pg_create_physical_replication_slot('kept', true)", '42501'],
    ["SELECT pg_create_logical_replication_slot('kept', 'pgoutput')", '42501'],
    ["SELECT pg_copy_physical_replication_slot('kept', 'copied')", '42501'],
    ["CREATE SUBSCRIPTION kept CONNECTION '' PUBLICATION p WITH (connect = false)", '42501'],
  ] as const;

  test.each(firstByDay(1, BRANCH_ROLES))(
    'a %s login leaves nothing that outlives its session',
    async (role) => {
      const codes: unknown[] = [];
      for (const [statement] of LASTING)
        await asClient(servers.host, 'direct', branch, role, statement).catch((error) =>
          codes.push(error.code),
        );
      expect(codes).toEqual(LASTING.map(([, code]) => code));
      // The types of the driver leave this option out.
      const config = {
        host: '127.0.0.1',
        port: servers.settings.POSTGRES_PORT,
        user: loginName(branch.branch_id, role),
        password: branch.passwords[role],
        database: branch.database,
        ssl: { rejectUnauthorized: false },
        replication: 'database',
      };
      const replicating = new pg.Client(config);
      await expect(replicating.connect()).rejects.toMatchObject({ code: '42501' });
    },
  );

  test.runIf(IS_NIGHTLY)(
    'a stopped process that holds the locks of rules and roles holds up nobody for long',
    async () => {
      const stopped = await servers.connect();
      for (const lock of ['rules', 'roles'])
        await stopped.query('SELECT pg_advisory_lock(hashtextextended($1, 0))', [lock]);
      const busy = { code: 'HOST_BUSY' };
      await Promise.all([
        expect(servers.host.rules.sync()).rejects.toMatchObject(busy),
        expect(runOperation(servers.host, 'host.inventory', {})).rejects.toMatchObject(busy),
      ]);
      await stopped.end();
      await servers.host.rules.sync();
    },
  );
}
