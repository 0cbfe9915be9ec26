import { once } from 'node:events';
import { watch as watchFolder } from 'node:fs';
import { mkdir, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { recover, ServerWatch } from '../../../agent/maintenance/recover.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { pause } from '../../../agent/pooler/pause.ts';
import { buildDatabaseName } from '../../../shared/branch/database-name.ts';
import { loginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  BUSY_WAIT_MS,
  branchDatabases,
  connect,
  identity,
  newBranch,
  type Project,
  startHostWithProject,
  toolOptions,
} from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

let servers: TestHost;
let project: Project;
let main: Branch;

beforeAll(async () => {
  // Enough data for a clone to run until it is interrupted.
  const filler = "CREATE TABLE filler AS SELECT repeat('x', 1000) AS x FROM generate_series(1, 10000)";
  ({ servers, project, main } = await startHostWithProject('db_crash_prod', filler));
});
afterAll(() => servers.stop());

const cloneArguments = (branch: Branch) => [
  'branch',
  'clone',
  ...toolOptions({ ...newBranch(branch), source: main.database, busy_wait: BUSY_WAIT_MS }),
];

/** Blocks every `CREATE DATABASE` until `release`. */
async function holdClones() {
  const holder = await servers.connect();
  await holder.query('BEGIN; LOCK TABLE pg_database IN SHARE MODE');
  return {
    /** Process id of the session that waits for it. */
    held: () =>
      eventually(async () => {
        const rows = await servers.query<{ pid: number }>(
          "SELECT pid FROM pg_stat_activity WHERE application_name = 'branchgate-agent' AND wait_event_type = 'Lock'",
        );
        expect(rows).toHaveLength(1);
        return rows[0]?.pid ?? 0;
      }),
    /** The crash that follows in a test can come before the reply. */
    release: () => Promise.allSettled([holder.query('COMMIT'), holder.end()]),
  };
}

/** Begins a clone in a separate agent process and kills that. PostgreSQL completes the clone. */
async function cloneByKilledAgent(branch: Branch) {
  const clones = await holdClones();
  const tool = await servers.spawnTool(...cloneArguments(branch));
  const ended = once(tool, 'exit');
  await clones.held();
  tool.kill('SIGKILL');
  await ended;
  await clones.release();
}

/** Directories below `base/` that belong to no database. */
async function leaked(): Promise<string[]> {
  const known = new Set(
    (await servers.query<{ oid: string }>('SELECT oid::text FROM pg_database')).map(({ oid }) => oid),
  );
  const found = await readdir(join(servers.settings.PGDATA_DIR, 'base'));
  return found.filter((name) => /^\d+$/.test(name) && !known.has(name));
}

const query = (branch: Branch) => asClient(servers.host, 'pooled', branch, 'read_write', 'SELECT 1 AS one');

test('an agent killed during a clone: the retry adopts its clone and makes no second one', async () => {
  const branch = project.plan('db_crash_prod_br_adopted');
  await cloneByKilledAgent(branch);
  expect(await project.clone(branch, main.database)).toMatchObject({ created: false });
  expect(await branchDatabases(servers)).toEqual([buildDatabaseName(branch.job_id), main.database]);
  await project.prepare(branch);
  await project.finalize(branch);
  expect(await recover(servers.host)).toEqual([]);
  await project.prove(branch);
  await project.drop(branch);
});

test('an agent killed during a clone: a drop waits for the clone and removes it', async () => {
  const branch = project.plan('db_crash_prod_br_dropped');
  await cloneByKilledAgent(branch);
  expect(await project.drop(branch)).toEqual({ dropped: true });
  expect(await branchDatabases(servers)).toEqual([main.database]);
  expect(await leaked()).toEqual([]);
});

test('an agent killed between PAUSE and RESUME: recovery resumes the clients', async () => {
  await pause(servers.settings, main.database);
  let hasReply = false;
  const waiting = query(main).then(() => {
    hasReply = true;
  });
  await sleep(200);
  expect(hasReply).toBe(false);
  await recover(servers.host);
  await waiting;
});

test('PostgreSQL crashing during a clone: its leftover directory is removed, and the retry makes the branch', async () => {
  const watch = new ServerWatch(servers.host, () => {});
  await watch.poll();
  const branch = project.plan('db_crash_prod_br_retried');
  const crashInClone = async () => {
    const clones = await holdClones();
    const cloning = Promise.allSettled([project.clone(branch, main.database)]);
    const creating = await clones.held();
    const base = watchFolder(join(servers.settings.PGDATA_DIR, 'base'));
    // The first change to the folder is the new database's directory.
    const killed = once(base, 'change').then(() => process.kill(creating, 'SIGKILL'));
    await clones.release();
    await killed;
    base.close();
    return (await cloning)[0];
  };
  let outcome = await crashInClone();
  // The clone can be complete before the signal arrives.
  while (outcome.status === 'fulfilled') {
    await eventually(() => project.drop(branch));
    outcome = await crashInClone();
  }
  expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'POSTGRES_UNAVAILABLE' } });
  // Idle sessions notice the crash when they are next used.
  expect(await eventually(leaked)).toHaveLength(1);
  await eventually(async () => {
    await watch.poll();
    expect(await leaked()).toEqual([]);
    await query(main);
  });
  expect(await eventually(() => project.clone(branch, main.database))).toMatchObject({ created: true });
  await project.prepare(branch);
  await project.finalize(branch);
  await project.prove(branch);
  await project.drop(branch);
});

test('PostgreSQL killed during a clone: the clone is complete or absent, and the retry makes the branch', async () => {
  const branch = project.plan('db_crash_prod_br_again');
  const cloning = Promise.allSettled([project.clone(branch, main.database)]);
  await sleep(30);
  await servers.end('postgres', 'SIGKILL');
  await cloning;
  // Sessions outlive their postmaster for a short time.
  await eventually(() =>
    expect(project.clone(branch, main.database)).rejects.toMatchObject({ code: 'POSTGRES_UNAVAILABLE' }),
  );
  await servers.start('postgres');
  await eventually(async () => expect(await recover(servers.host)).toEqual([]));
  expect(await leaked()).toEqual([]);
  await project.clone(branch, main.database);
  expect(await branchDatabases(servers)).toEqual([buildDatabaseName(branch.job_id), main.database]);
  await project.drop(branch);
});

test('both servers killed together: rules, entries and logins are as before', async () => {
  await servers.end('postgres', 'SIGKILL');
  await servers.end('pooler', 'SIGKILL');
  expect((await recover(servers.host)).length).toBeGreaterThan(0);
  await servers.start('postgres');
  await servers.start('pooler');
  expect(await recover(servers.host)).toEqual([]);
  await query(main);
});

test('a directory without a database is removed, also while databases are created; other files stay', async () => {
  const base = join(servers.settings.PGDATA_DIR, 'base');
  await mkdir(join(base, '4000000000'));
  await writeFile(join(base, '4000000000', 'PG_VERSION'), '18\n');
  await mkdir(join(base, 'pgsql_tmp_kept'));
  const branches = Promise.all([1, 2].map((n) => project.create(`db_crash_prod_br_n${n}`, main.database)));
  await eventually(async () => {
    await recover(servers.host);
    expect((await readdir(base)).filter((name) => name === '4000000000')).toEqual([]);
  });
  for (const branch of await branches) await query(branch);
  expect(await readdir(base)).toContain('pgsql_tmp_kept');
  await Promise.all((await branches).map((branch) => project.drop(branch)));
});

test('an interrupted drop is completed', async () => {
  const branch = await project.create('db_crash_prod_br_half', main.database);
  await servers.query('UPDATE pg_database SET datconnlimit = -2 WHERE datname = $1', [branch.database]);
  expect(await recover(servers.host)).toEqual([]);
  expect(await branchDatabases(servers)).toEqual([main.database]);
  expect(await project.drop(branch)).toEqual({ dropped: false });
});

test('a password that a login changed is restored', async () => {
  await asClient(
    servers.host,
    'direct',
    main,
    'read_write',
    `ALTER ROLE ${loginName(main.branch_id, 'read_write')} PASSWORD 'mine now'`,
  );
  await expect(connect(servers.host, 'direct', main, 'read_write')).rejects.toThrow('authentication failed');
  await recover(servers.host);
  await (await connect(servers.host, 'direct', main, 'read_write')).end();
});

/** About 60 MB of notifications in one transaction; the queue of a host holds 128 MB. */
const FLOOD = "SELECT count(pg_notify('flood', repeat('x', 7500) || n)) FROM generate_series(1, 8000) AS n";
const FULL = /too many notifications/;

test.runIf(IS_NIGHTLY)('NOTIFY works again after a login that filled the queue has gone', async () => {
  const listener = await connect(servers.host, 'direct', main, 'read_only');
  await listener.query('LISTEN flood');
  await listener.query('BEGIN');
  const flooder = await connect(servers.host, 'direct', main, 'read_only');
  const flood = async () => {
    for (let round = 0; round < 5; round++) await flooder.query(FLOOD);
  };
  await expect(flood()).rejects.toThrow(FULL);
  await listener.end();

  const client = await connect(servers.host, 'direct', main, 'read_write');
  await expect(client.query('NOTIFY other')).rejects.toThrow(FULL);
  await new ServerWatch(servers.host, () => {}).poll();
  await client.query('NOTIFY other');
  await Promise.all([flooder.end(), client.end()]);
});

test('the control tool works on the same tables and rules as the agent', async () => {
  const branch = await project.create('db_crash_prod_br_shared', main.database);
  const list = await servers.tool('list', '--json');
  expect(JSON.parse(list.stdout).branches).toEqual(
    (await runOperation(servers.host, 'host.inventory', {})).branches,
  );
  const drop = await servers.tool('branch', 'drop', ...toolOptions(identity(branch)));
  expect(drop).toMatchObject({ exitCode: 0, stdout: 'dropped: true\n' });
  await expect(query(branch)).rejects.toThrow();
  await project.drop(main);
  expect(await branchDatabases(servers)).toEqual([]);
});
