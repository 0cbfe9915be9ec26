import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { RuleSync } from '../../../agent/access/sync-rules.ts';
import { BlockReports } from '../../../agent/blocks/report-blocks.ts';
import { BLOCK_FOR, GuardBlocks } from '../../../agent/guard/blocks.ts';
import { readDiskUse } from '../../../agent/guard/disk-space.ts';
import type { TenantSession } from '../../../agent/guard/guard.ts';
import { GuardWatch } from '../../../agent/guard/watch-guards.ts';
import type { Host } from '../../../agent/host/host.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import type { ProjectBlocks } from '../../../shared/block.ts';
import { eventually } from '../../support/eventually.ts';
import { attempt, targetOf } from '../../support/host/attempts.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, connect, type Port, Project } from '../../support/host/host-project.ts';
import { Browser } from '../../support/host/host-rows.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const LIMITS = { PROJECT_CONNECTIONS: 10, TRANSACTION_IDS_PER_SECOND: 500 };
const TRANSACTION_SECONDS = 2;

interface Event {
  event: string;
  branch_id?: string;
  [field: string]: unknown;
}

let servers: TestHost;
let host: Host;
let project: Project;
let victim: Branch;
let clients: pg.Client[];
const events: Event[] = [];
let stop: () => Promise<void>;
/** The clock of the blocks stands still, however long a test takes. */
let now = 0;
const endBlocks = () => {
  now += BLOCK_FOR;
};

beforeAll(async () => {
  servers = await startHost();
  host = { ...servers.host, settings: { ...servers.settings, ...LIMITS } };
  project = new Project(host);
  victim = await project.create('db_guards_prod', null);
  clients = [
    await connect(host, 'direct', victim, 'read_write'),
    await connect(host, 'pooled', victim, 'read_write'),
  ];
  stop = watch(host);
});
afterAll(async () => {
  try {
    // Nobody else was disturbed by any of the attacks.
    for (const client of clients) {
      await client.query('NOTIFY afterwards');
      await client.end();
    }
    await stop();
    expect(events.filter(({ event }) => /failed|not_applied/.test(event))).toEqual([]);
    expect(events.filter(({ branch_id }) => branch_id === victim.branch_id)).toEqual([]);
  } finally {
    await servers.stop();
  }
});

/** Watches as an agent does. @returns a function that stops it */
function watch(watched: Host): () => Promise<void> {
  const ending = new AbortController();
  const log = (event: string, fields?: Record<string, unknown>) => events.push({ event, ...fields });
  const running = new GuardWatch(watched, log, new GuardBlocks(watched, log, () => now)).run(ending.signal);
  return async () => {
    ending.abort();
    await running;
  };
}

let made = 0;
const newBranch = (of = project) => of.create(`db_guards_${of.id.slice(0, 8)}_br_n${made++}`, null);
const eventsOf = ({ branch_id }: Branch) => events.filter((event) => event.branch_id === branch_id);
const blocked = (branch: Branch, reason: string) =>
  eventually(async () =>
    expect(eventsOf(branch)).toContainEqual(expect.objectContaining({ event: 'guard.blocked', reason })),
  );
/** `refused`, or the pooler's answer for a database that it does not serve. */
const outcome = (port: Port, branch: Branch) =>
  attempt(targetOf(servers, port, branch)).catch((error: Error) => error.message);
const whenEnded = (client: pg.Client) => new Promise<void>((resolve) => client.once('end', resolve));

/**
 * A loop of transactions, each with an id. It is one statement, so PostgreSQL's statistics do not show them. Its
 * pauses leave the processors to the watchdog.
 */
const TAKE_IDS = `
  DO $$ BEGIN LOOP
    FOR n IN 1..100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP;
    PERFORM pg_current_xact_id(), pg_sleep(0.005);
  END LOOP; END $$`;
const TAKE_SUBTRANSACTION_IDS = `
  CREATE TEMPORARY TABLE t (n integer);
  DO $$ BEGIN LOOP
    FOR n IN 1..100 LOOP
      BEGIN INSERT INTO t VALUES (1); RAISE division_by_zero; EXCEPTION WHEN OTHERS THEN END;
    END LOOP;
    PERFORM pg_sleep(0.005);
  END LOOP; END $$`;

const FILL = `INSERT INTO filled SELECT repeat('x', 1000) FROM generate_series(1, 4000)`;

test('a blocked branch is rejected on both ports and its clients are disconnected, until the block ends', async () => {
  const branch = await newBranch();
  const pooled = await connect(host, 'pooled', branch, 'read_only');
  const idle = await connect(host, 'direct', branch, 'read_only');
  const attacker = await connect(host, 'direct', branch, 'read_only');
  const ended = Promise.all([pooled, idle, attacker].map(whenEnded));
  attacker.query(TAKE_IDS).catch(() => {});
  await blocked(branch, 'transaction_ids');
  await ended;
  await eventually(async () => expect(await outcome('direct', branch)).toBe('refused'));
  await eventually(async () =>
    expect(await outcome('pooled', branch)).toMatch(/^(refused|no such database)/),
  );
  // What a control tool does, which does not know this process.
  await new RuleSync(host.settings, host.postgres).sync();
  expect(await outcome('direct', branch)).toBe('refused');
  endBlocks();
  await eventually(async () => {
    expect(await outcome('direct', branch)).toBe('in');
    expect(await outcome('pooled', branch)).toBe('in');
    expect(eventsOf(branch).map(({ event }) => event)).toEqual(['guard.blocked', 'guard.unblocked']);
  });
});

test('a session is ended before it is known whose its branch is, which is blocked afterwards', async () => {
  const branch = await newBranch();
  const rename = (from: string, to: string) =>
    servers.query('UPDATE branch SET database = $2 WHERE database = $1', [from, to]);
  await stop();
  await rename(branch.database, 'db_unknown_prod');
  stop = watch(host);
  const idle = await connect(host, 'direct', branch, 'read_only');
  const attacker = await connect(host, 'direct', branch, 'read_only');
  const ended = whenEnded(attacker);
  attacker
    .query('SELECT pg_advisory_lock(n) FROM generate_series(1, 6000) AS n; SELECT pg_sleep(60)')
    .catch(() => {});
  await ended;
  expect(eventsOf(branch)).toEqual([]);
  await rename('db_unknown_prod', branch.database);
  await Promise.all([blocked(branch, 'locks'), whenEnded(idle)]);
  endBlocks();
  await eventually(async () => expect(await outcome('direct', branch)).toBe('in'));
});

test('the ids of subtransactions count too', async () => {
  const branch = await newBranch();
  const attacker = await connect(host, 'direct', branch, 'read_only');
  attacker.query(TAKE_SUBTRANSACTION_IDS).catch(() => {});
  await Promise.all([blocked(branch, 'transaction_ids'), whenEnded(attacker)]);
});

test('a rehearsed branch that writes more than a copy may hold is blocked, and the end of the rehearsal says so', async () => {
  const branch = await newBranch();
  const { branch_id, database } = branch;
  const limits = { lock_ms: 1_000, table_bytes: 0 };
  await runOperation(host, 'rehearsal.start', { branch_id, database, limits });
  const migration = await connect(host, 'direct', branch, 'owner');
  await migration.query('CREATE TABLE filled (text text)');
  // As if the migration had written all but 1 MiB of what it may.
  await servers.query(
    'UPDATE rehearsal SET bytes = (pg_database_size(database) + 2 ^ 20 - 2 ^ 30) / 2 WHERE branch_id = $1',
    [branch_id],
  );
  const ended = whenEnded(migration);
  await migration.query(FILL).catch(() => {});
  await Promise.all([blocked(branch, 'disk'), ended]);
  const finish = () => runOperation(host, 'rehearsal.finish', { branch_id, database });
  await expect(finish()).rejects.toMatchObject({
    code: 'STATEMENT_REFUSED',
    message: 'the migration was ended: it writes more than a copy may hold',
  });
  endBlocks();
  await eventually(async () => expect(await outcome('direct', branch)).toBe('in'));
  expect(await finish()).toMatchObject({ rehearsal: { state: 'finished' } });
});

test.runIf(IS_NIGHTLY)('locks of many transactions on one row count as ids', async () => {
  const branch = await newBranch();
  const owner = await connect(host, 'direct', branch, 'owner');
  await owner.query('CREATE TABLE shared_row (id integer PRIMARY KEY); INSERT INTO shared_row VALUES (1)');
  const holders: pg.Client[] = [];
  await stop();
  // So many ids are allowed that they alone take longer than the members.
  const lenient = { PROJECT_CONNECTIONS: 120, TRANSACTION_IDS_PER_SECOND: 10_000 };
  stop = watch({ ...host, settings: { ...host.settings, ...lenient } });
  while (holders.length < 20) holders.push(await connect(host, 'direct', branch, 'owner'));
  for (const holder of holders) await holder.query('BEGIN; SELECT FROM shared_row FOR SHARE');
  const ended = Promise.all([...holders, owner].map(whenEnded));
  owner.query('DO $$ BEGIN LOOP PERFORM FROM shared_row FOR SHARE; COMMIT; END LOOP; END $$').catch(() => {});
  await Promise.all([blocked(branch, 'transaction_ids'), ended]);
  expect(eventsOf(branch)[0]).toMatchObject({ multixact_members: expect.any(Number) });
  await stop();
  stop = watch(host);
});

test.runIf(IS_NIGHTLY)(
  'functions that sleep in autovacuum are ended, and their tables are left out the second time',
  async () => {
    const attacker = await newBranch();
    const neighbour = await newBranch();
    await servers.query('ALTER SYSTEM SET autovacuum_naptime = 1');
    await servers.query('SELECT pg_reload_conf()');
    const owner = await connect(host, 'direct', attacker, 'owner');
    await owner.query(
      `CREATE FUNCTION slow(n integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
       IF session_user !~ '^u_' THEN PERFORM pg_sleep(3600); END IF;
       RETURN n;
     END $$`,
    );
    for (const table of ['one', 'two', 'three', 'four'])
      await owner.query(
        `CREATE TABLE ${table} (n integer); CREATE INDEX ON ${table} (slow(n));
       INSERT INTO ${table} SELECT generate_series(1, 500)`,
      );
    const ended = whenEnded(owner);
    await blocked(attacker, 'autovacuum');
    await ended;
    endBlocks();
    const victim = await connect(host, 'direct', neighbour, 'owner');
    await victim.query('CREATE TABLE plain (n integer); INSERT INTO plain SELECT generate_series(1, 500)');
    await eventually(async () => {
      const { rows } = await victim.query(
        "SELECT FROM pg_stat_user_tables WHERE relname = 'plain' AND last_autoanalyze IS NOT NULL",
      );
      expect(rows).toHaveLength(1);
    });
    await victim.end();
    await eventually(async () => {
      endBlocks();
      const later = await connect(host, 'direct', attacker, 'owner');
      const { rows } = await later.query(
        "SELECT FROM pg_class WHERE relkind = 'r' AND 'autovacuum_enabled=off' = ANY (reloptions)",
      );
      await later.end();
      expect(rows).toHaveLength(4);
    });
  },
);

test('the blocks of a project are reported, and an agent that starts continues them', async () => {
  const other = new Project(host);
  const branch = await newBranch(other);
  const reports: ProjectBlocks[] = [];
  const reporter = new BlockReports(host, (blocks) => reports.push(blocks));
  const ofProject = () => reports.filter(({ project_id }) => project_id === other.id);
  await reporter.check();
  expect(ofProject()).toEqual([]);

  const attacker = await connect(host, 'direct', branch, 'read_only');
  const ended = whenEnded(attacker);
  attacker.query(TAKE_IDS).catch(() => {});
  await blocked(branch, 'transaction_ids');
  await ended;
  await eventually(async () => {
    await reporter.check();
    expect(ofProject()).toHaveLength(1);
  });
  expect(ofProject()[0]?.blocks).toEqual([
    { branch_id: branch.branch_id, reason: 'transaction_ids', until: expect.any(String) },
  ]);
  await reporter.check(performance.now() + 59_000);
  expect(ofProject()).toHaveLength(1);
  await reporter.check(performance.now() + 61_000);
  expect(ofProject()).toHaveLength(2);

  await stop();
  stop = watch({ ...host, rules: new RuleSync(host.settings, host.postgres) });
  expect(await outcome('direct', branch)).toBe('refused');
  await eventually(async () => {
    // The agent that starts may not know of the block before.
    endBlocks();
    expect(await outcome('direct', branch)).toBe('in');
    expect(eventsOf(branch).map(({ event }) => event)).toEqual(['guard.blocked', 'guard.unblocked']);
  });
  await reporter.check();
  expect(ofProject().at(-1)?.blocks).toEqual([]);
});

test('an old transaction is ended, also one without a timeout; the agent keeps its own', async () => {
  const branch = await newBranch();
  await stop();
  stop = watch({ ...host, settings: { ...host.settings, TRANSACTION_SECONDS } });
  const own = await servers.connect();
  await own.query('BEGIN; SELECT pg_current_xact_id()');
  const old = await connect(host, 'direct', branch, 'read_only');
  const ended = whenEnded(old);
  const start = performance.now();
  await old.query(
    'SET transaction_timeout = 0; SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT 1',
  );
  await ended;
  expect(performance.now() - start).toBeGreaterThan(TRANSACTION_SECONDS * 1000);
  await own.query('COMMIT');
  await own.end();
  expect(await outcome('direct', branch)).toBe('in');
  await stop();
  stop = watch(host);
});

test('the newest sessions of a project above its limit are ended, over all of its branches', async () => {
  const crowded = new Project(host);
  const branches = [await newBranch(crowded), await newBranch(crowded)] as const;
  // The pooler would keep the sessions of the proofs for a while.
  await servers.query(
    `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
     WHERE backend_type = 'client backend' AND datname = ANY ($1)`,
    [branches.map(({ database }) => database)],
  );
  // The agent's own, which waits for the next page of rows, does not count.
  await new Browser(host, branches[0]).tables();
  const held: pg.Client[] = [];
  for (let n = 0; n < LIMITS.PROJECT_CONNECTIONS; n++)
    held.push(await connect(host, 'direct', branches[n % 2 === 0 ? 0 : 1], 'read_only'));
  for (const branch of branches) await whenEnded(await connect(host, 'direct', branch, 'read_only'));
  for (const client of held) {
    await client.query('SELECT 1');
    await client.end();
  }
  expect(branches.flatMap(eventsOf)).toEqual([]);
});

test.runIf(IS_NIGHTLY)('projects of one tenant have a limit together', async () => {
  const first = new Project(host);
  const second = new Project(host);
  const crowded = [await newBranch(first), await newBranch(second)] as const;
  for (const { id } of [first, second])
    await servers.query("UPDATE project SET tenant = 'acme' WHERE project_id = $1", [id]);
  await servers.query(
    `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
     WHERE backend_type = 'client backend' AND datname = ANY ($1)`,
    [crowded.map(({ database }) => database)],
  );
  await stop();
  stop = watch({ ...host, settings: { ...host.settings, TENANT_CONNECTIONS: 10 } });
  const held: pg.Client[] = [];
  for (let n = 0; n < 10; n++)
    held.push(await connect(host, 'direct', crowded[n % 2 === 0 ? 0 : 1], 'read_only'));
  await whenEnded(await connect(host, 'direct', crowded[0], 'read_only'));
  for (const client of held) {
    await client.query('SELECT 1');
    await client.end();
  }
  await stop();
  stop = watch(host);
});

test('clients of the pooler of one tenant have a limit together, and the branch with the most is blocked', async () => {
  const first = new Project(host);
  const second = new Project(host);
  const most = await newBranch(first);
  const less = await newBranch(second);
  for (const { id } of [first, second])
    await servers.query("UPDATE project SET tenant = 'pooled' WHERE project_id = $1", [id]);
  await stop();
  stop = watch({ ...host, settings: { ...host.settings, POOLER_MAX_CLIENTS: 7 } });
  const held = [];
  for (const branch of [most, less, most, less, most, less, most])
    held.push({ branch, client: await connect(host, 'pooled', branch, 'read_only') });
  const ended = Promise.all(
    held.filter(({ branch }) => branch === most).map(({ client }) => whenEnded(client)),
  );
  held.push({ branch: most, client: await connect(host, 'pooled', most, 'read_only') });
  await blocked(most, 'connections');
  await ended;
  for (const { branch, client } of held)
    if (branch === less) {
      await client.query('SELECT 1');
      await client.end();
    }
  expect(eventsOf(less)).toEqual([]);
  endBlocks();
  await stop();
  stop = watch(host);
});

test.runIf(IS_NIGHTLY)(
  'a branch that makes many tables is blocked, and its owner may drop them when the block has ended',
  async () => {
    const branch = await newBranch();
    await stop();
    stop = watch({ ...host, settings: { ...host.settings, PROJECT_FILES: 600 } });
    const owner = await connect(host, 'direct', branch, 'owner');
    const ended = whenEnded(owner);
    let made = 0;
    await eventually(async () => {
      for (let n = 0; n < 5; n++)
        await owner.query(`CREATE TABLE many_${made++} (n integer)`).catch(() => {});
      expect(eventsOf(branch)).toContainEqual(
        expect.objectContaining({ event: 'guard.blocked', reason: 'files' }),
      );
    });
    await ended;
    await eventually(async () => {
      // A count that was under way when the sessions ended blocks the branch once more.
      endBlocks();
      const later = await connect(host, 'direct', branch, 'owner');
      const { rows } = await later.query(
        "SELECT oid::regclass::text AS name FROM pg_class WHERE relname ~ '^many_'",
      );
      await later.query(rows.map(({ name }) => `DROP TABLE ${name}`).join('; '));
      await later.end();
    });
    await stop();
    stop = watch(host);
  },
);

test('who fills the queue of NOTIFY is blocked, before the queue is full for others', async () => {
  const branch = await newBranch();
  const listener = await connect(host, 'direct', branch, 'read_only');
  await listener.query('LISTEN flood');
  await listener.query('BEGIN');
  const flooder = await connect(host, 'direct', branch, 'read_only');
  const ended = Promise.all([listener, flooder].map(whenEnded));
  const flood = async () => {
    // On a fast machine PostgreSQL fills the queue between two looks of the watchdog, unless it pauses.
    for (;;)
      await flooder.query(
        "SELECT count(pg_notify('flood', repeat('x', 7500) || n)), pg_sleep(0.02) FROM generate_series(1, 250) AS n",
      );
  };
  const flooding = flood().catch((error: Error) => error.message);
  await blocked(branch, 'disk');
  await ended;
  expect(await flooding).not.toMatch(/too many notifications/);
  await eventually(async () => {
    const [queue] = await servers.query<{ share: number }>('SELECT pg_notification_queue_usage() AS share');
    expect(queue?.share).toBeLessThan(0.01);
  });
});

test('a listener that holds the queue of NOTIFY up is ended, and no older transaction of a neighbour', async () => {
  const neighbour = new Project(host);
  const holder = new Project(host);
  const flooder = new Project(host);
  const [oldest, listener, sender] = await Promise.all(
    [neighbour, holder, flooder].map(async (of) => connect(host, 'direct', await newBranch(of), 'read_only')),
  );
  if (!oldest || !listener || !sender) throw new Error('no sessions');
  await oldest.query('BEGIN; SELECT 1');
  await listener.query('LISTEN anything');
  await listener.query('BEGIN; SELECT 1');
  const ended = whenEnded(listener);
  // More than half of the queue in one transaction, of which the sender's branch is blocked afterwards.
  sender
    .query(`SELECT count(pg_notify('flood', repeat('x', 7900) || n)) FROM generate_series(1, 9000) AS n`)
    .catch(() => {});
  await ended;
  await eventually(async () => {
    const [queue] = await servers.query<{ share: number }>('SELECT pg_notification_queue_usage() AS share');
    expect(queue?.share).toBeLessThan(0.01);
  });
  expect((await oldest.query('SELECT 1 AS one')).rows).toEqual([{ one: 1 }]);
  await oldest.query('COMMIT');
  await oldest.end();
});

test.runIf(IS_NIGHTLY)('what a branch takes on the disk is seen while its statement runs', async () => {
  const branch = await newBranch();
  const holder = await connect(host, 'direct', branch, 'owner');
  await holder.query('SELECT pg_advisory_lock(1)');
  const writer = await connect(host, 'direct', branch, 'owner');
  const sorter = await connect(host, 'direct', branch, 'read_only');
  const sessions = await Promise.all(
    [writer, sorter].map(async (client) => {
      const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
      return { pid: rows[0]?.pid, key: String(rows[0]?.pid) } as TenantSession;
    }),
  );
  const guarded = { ...branch, kind: 'branch' as const, tenant: branch.project_id };
  const read = () => readDiskUse(host.postgres, host.settings.PGDATA_DIR, new Map([[guarded, sessions]]));
  const before = await read();
  // Both statements hold what they have taken until the lock is free.
  const running = Promise.all([
    writer.query(
      `DO $$ BEGIN
         CREATE TABLE filled AS SELECT repeat(md5(n::text), 20) AS text FROM generate_series(1, 30000) AS n;
         PERFORM pg_advisory_xact_lock_shared(1);
       END $$`,
    ),
    sorter.query(
      `SELECT pg_advisory_xact_lock_shared(n)
       FROM (SELECT n FROM generate_series(1, 1000000) AS n ORDER BY -n OFFSET 999999) AS last`,
    ),
  ]);
  const MB = 2 ** 20;
  await eventually(async () => {
    const { bytes, wal } = await read();
    expect(Number(bytes.get(guarded)) - Number(before.bytes.get(guarded))).toBeGreaterThan(32 * MB);
    expect(wal.size).toBe(2);
  });
  await holder.end();
  await running;
  await eventually(async () => {
    const { bytes, wal } = await read();
    const grown = Number(bytes.get(guarded)) - Number(before.bytes.get(guarded));
    expect(grown).toBeGreaterThan(18 * MB);
    expect(grown).toBeLessThan(30 * MB);
    expect(wal.get(String(sessions[0]?.pid))?.bytes).toBeGreaterThan(10_000);
  });
  await Promise.all([writer.end(), sorter.end()]);
});
