import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api, type BranchBody, type Credentials, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { connect } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { fillLedger, imbalance, Load } from '../support/load.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { dropBranch } from '../support/records/jobs.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

/** Large enough to be copied file by file where there is no reflink. */
const MEGABYTES = 64;
const CLIENTS = 8;
const CREATIONS = 6;

let stack: Stack;
let api: Api;
let project: ProjectBody;
let main: Credentials;
let postgres: pg.Client;
let load: Load;
const branches = () => `/api/v1/projects/${project.id}/branches`;

beforeAll(async () => {
  stack = await startStack({ restarts: false });
  api = new Api(stack.url, await stack.token());
  // Its branches together exceed the default quota.
  project = await api.project('Live', { storage_quota_gib: 5 });
  await api.allow(project.id);
  main = await api.credentials(project.id, 'main');
  postgres = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate');
  await fillLedger(main.direct_url, MEGABYTES);
  load = await Load.start(main.database_url, CLIENTS);
});

afterAll(async () => {
  await load?.stop();
  await postgres?.end();
  await stack?.stop();
});

/** Opens a direct session of main with an open transaction. */
async function inTransaction(): Promise<pg.Client> {
  const session = await connect(main.direct_url);
  await session.query('begin');
  await session.query('insert into ledger (account, teller, amount) values (1, 1, 0)');
  return session;
}

async function isPaused(): Promise<boolean> {
  const console = await connectOnHost(socketsOf(stack.state).pooler, 'pgbouncer');
  try {
    const { rows } = await console.query<{ name: string; paused: number }>('SHOW DATABASES');
    return rows.some(({ name, paused }) => name === main.database && Number(paused) === 1);
  } finally {
    await console.end();
  }
}

const databases = async () =>
  (
    await postgres.query<{ datname: string }>(
      "select datname from pg_database where datname ~ '^(db_|bgjob_)' order by datname",
    )
  ).rows.map(({ datname }) => datname);

describe('clients of a database that is branched', () => {
  const made: BranchBody[] = [];

  // `npm run bench -- busy-main` measures how long they wait.
  test.runIf(IS_NIGHTLY)('lose no transaction, and all continue after every clone', async () => {
    const start = performance.now();
    for (let n = 1; n <= CREATIONS; n++) {
      made.push(await api.branch(project.id, `live-${n}`));
      const created = performance.now();
      await eventually(async () => expect(load.since(created).transactions).toBeGreaterThan(CLIENTS));
    }
    expect(load.since(start).failures).toEqual([]);
  });

  test.runIf(IS_NIGHTLY)('leave a consistent copy in every branch', async () => {
    for (const { id } of made) {
      const { direct_url } = await api.credentials(project.id, id);
      expect(await imbalance(direct_url)).toBe(0);
      await dropBranch(api, project.id, id);
    }
  });
});

describe('a direct session', () => {
  test.runIf(IS_NIGHTLY)(
    'with an open transaction makes the source busy, and no branch is created',
    async () => {
      const before = await databases();
      const session = await inTransaction();
      const start = performance.now();
      const creation = api.post(branches(), { branch_name: 'busy' }, FROM_LOOPBACK);
      await eventually(async () => expect(await isPaused()).toBe(true));
      expect(await creation).toMatchObject({ status: 409, body: { error: 'SOURCE_BUSY' } });
      const refused = performance.now();

      await session.query('commit');
      await session.end();
      expect(await isPaused()).toBe(false);
      await eventually(async () => expect(load.since(refused).transactions).toBeGreaterThan(0));
      expect(load.since(start).failures).toEqual([]);

      const lookup = await api.get(`${branches()}/lookup?name=busy`);
      expect(lookup.body).toEqual({ matches: [], is_duplicate: false });
      expect(await databases()).toEqual(before);
      const { stdout } = await stack.agentTool('--json', 'host', 'inventory');
      expect(JSON.parse(stdout).branches).toHaveLength(before.length);

      const branch = await api.branch(project.id, 'busy');
      await dropBranch(api, project.id, branch.id);
    },
  );

  test.runIf(IS_NIGHTLY)('that is idle is ended and does not block the clone', async () => {
    const session = await connect(main.direct_url);
    await session.query('select 1');
    const branch = await api.branch(project.id, 'after-idle');
    await expect(session.query('select 1')).rejects.toThrow();
    await dropBranch(api, project.id, branch.id);
  });
});

describe('an agent that dies while it pauses the clients', () => {
  test.runIf(IS_NIGHTLY)('resumes them after its restart, and the branch is created', async () => {
    const session = await inTransaction();
    const begun = performance.now();
    const creation = api.post<BranchBody>(branches(), { branch_name: 'killed' }, FROM_LOOPBACK);
    await eventually(async () => expect(await isPaused()).toBe(true));
    await stack.kill('agent');
    await session.query('commit');
    await session.end();
    await sleep(1_000);
    expect(await isPaused()).toBe(true);

    const restarted = performance.now();
    await stack.start('agent');
    await eventually(async () => expect(load.since(restarted).transactions).toBeGreaterThan(CLIENTS));

    const { status, body } = await creation;
    expect(status).toBe(201);
    expect(load.since(begun).failures).toEqual([]);
    expect(await databases()).toContain(body.database_name);
    expect((await databases()).filter((name) => name.startsWith('bgjob_'))).toEqual([]);
  });
});
