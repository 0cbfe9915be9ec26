import {
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { accessToken, scopeNames } from '../../dev/identity-provider/access-token.ts';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { stackProcesses } from '../../dev/stack/leftovers.ts';
import { Refusal, readSettings } from '../../dev/stack/settings.ts';
import { type StackState, startStack as startLocalStack } from '../../dev/stack/stack.ts';
import { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/free-port.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import { PREPARED } from '../support/prepared.ts';
import { freePorts, startStack, temporaryFolder } from '../support/stack/stack.ts';
import {
  interrupt,
  readStackFile,
  runStart,
  type StartedStack,
  untilReady,
} from '../support/stack/started-stack.ts';

/**
 * Every test continues where the previous one ended, because a start in a new folder takes several seconds.
 */
let devDir: string;
let home: string;
let env: Record<string, string>;
let stack: StartedStack;

beforeAll(async () => {
  devDir = temporaryFolder();
  home = temporaryFolder();
  env = { DEV_DIR: devDir, HOME: home, ...(await freePorts()) };
});

afterAll(async () => {
  await interrupt(stack);
  for (const dir of [devDir, home]) rmSync(dir, { recursive: true, force: true });
});

async function start(settings = env): Promise<StartedStack> {
  stack = runStart(settings);
  await untilReady(stack);
  return stack;
}

async function owner(): Promise<Api> {
  const issuedAt = new Date();
  const token = await accessToken(devFolder(devDir).identityProvider, {
    email: 'ada@example.com',
    role: 'owner',
    tenant: 'acme',
    scopes: scopeNames(['read', 'write']),
    issuedAt,
    expiresAt: new Date(issuedAt.getTime() + 600_000),
  });
  return new Api(readStackFile(devDir).base_url, token);
}

/** Process 0 would be the group of this test. */
function kill(pid: number | null | undefined): void {
  if (!pid) throw new Error('the part does not run');
  process.kill(pid, 'SIGKILL');
}

test.runIf(IS_NIGHTLY)('an interrupted first start stops the parts that it started', async () => {
  stack = runStart(env);
  await eventually(async () => expect(stackProcesses(devDir)).not.toEqual([]));
  const ending = await interrupt(stack);
  expect(ending).toMatchObject({ code: 1, stderr: 'branchgate: stopped\n' });
  expect(stackProcesses(devDir)).toEqual([]);
});

test('a start writes stack.json and nothing outside its folder', async () => {
  const { output } = await start();
  expect(output().trimEnd().split('\n').at(-1)).toBe(
    `branchgate is ready: http://127.0.0.1:${env.GATEWAY_PORT}`,
  );
  const state = readStackFile(devDir);
  expect(state).toMatchObject({
    base_url: `http://127.0.0.1:${env.GATEWAY_PORT}`,
    idp_url: `http://127.0.0.1:${env.IDP_PORT}`,
    db_host: '127.0.0.1',
    direct_port: Number(env.DIRECT_PORT),
    pooled_port: Number(env.POOLED_PORT),
    sql_port: Number(env.SQL_PORT),
    clone_method: expect.stringMatching(/^(reflink|copy)$/),
  });
  expect(statSync(state.mail_dir).isDirectory()).toBe(true);
  expect(statSync(devFolder(devDir).secretsFile).mode & 0o777).toBe(0o600);
  expect(readdirSync(home)).toEqual([]);
});

test('a second start is refused, and the first runs on', async () => {
  const second = await runStart(env).ended;
  expect(second).toEqual({
    code: 1,
    stdout: '',
    stderr: `branchgate: a stack is already running in ${devDir}: stop it, or set DEV_DIR to another folder\n`,
  });
  expect((await fetch(`${readStackFile(devDir).base_url}/readyz`)).status).toBe(200);
});

test('a part that dies is restarted, and stack.json contains its new process id', async () => {
  const before = readStackFile(devDir).pids;
  const parts = firstByDay(2, ['postgres', 'agent', 'gateway'] as const);
  for (const part of parts) kill(before[part]);
  await eventually(async () => {
    const { base_url, pids } = readStackFile(devDir);
    for (const name of parts) {
      expect(pids[name]).toEqual(expect.any(Number));
      expect(pids[name]).not.toBe(before[name]);
    }
    expect((await fetch(`${base_url}/readyz`)).status).toBe(200);
  });
  for (const part of parts) expect(stack.output()).toContain(`${part} ended (SIGKILL); restarting it`);
  expect((await (await owner()).post('/api/v1/projects', { name: 'Shop' })).status).toBe(201);
});

test('logs contain no secret', () => {
  const { secretsFile, logs } = devFolder(devDir);
  const secrets = Object.values(JSON.parse(readFileSync(secretsFile, 'utf8')) as Record<string, string>);
  for (const log of readdirSync(logs)) {
    const text = readFileSync(join(logs, log), 'utf8');
    for (const secret of secrets) expect(text.includes(secret), log).toBe(false);
  }
});

/** Of the stack that Ctrl-C has ended. */
let state: StackState;

test('Ctrl-C stops everything', async () => {
  state = readStackFile(devDir);
  const temporaryFiles = () => readdirSync(devFolder(devDir).gatewayScratch);
  expect(temporaryFiles()).not.toEqual([]);

  const ending = await interrupt(stack);
  expect(ending).toMatchObject({ code: 0, stderr: '' });
  expect(readdirSync(home)).toEqual([]);
  expect(temporaryFiles()).toEqual([]);
  expect(stackProcesses(devDir)).toEqual([]);
  expect(existsSync(join(state.host_dir, 'sockets'))).toBe(false);
  expect(existsSync(devFolder(devDir).stackFile)).toBe(false);
});

/** Every test damages a part of the stack that has ended, and restores it. */
describe('a start that is refused', () => {
  const isRoot = process.getuid?.() === 0;
  let restore = () => {};
  afterEach(() => {
    restore();
    restore = () => {};
  });

  /** Replaces a file, or removes it when `text` is null. */
  function replace(path: string, text: string | null) {
    renameSync(path, `${path}.original`);
    if (text !== null) writeFileSync(path, text);
    restore = () => {
      rmSync(path, { recursive: true, force: true });
      renameSync(`${path}.original`, path);
    };
  }

  /** Names and modification times of all files; a start that changes nothing leaves them equal. */
  const snapshot = () =>
    readdirSync(devDir, { recursive: true, encoding: 'utf8' })
      .map((name) => ({ name, at: statSync(join(devDir, name)).mtimeMs }))
      .sort((a, b) => a.name.localeCompare(b.name));

  interface Broken {
    state: string;
    damage: () => void;
    message: RegExp;
  }

  const BROKEN: Broken[] = [
    {
      state: 'PG_VERSION is missing',
      damage: () => replace(join(state.data_dir, 'PG_VERSION'), null),
      message: /PG_VERSION is missing/,
    },
    {
      state: 'another major version',
      damage: () => replace(join(state.data_dir, 'PG_VERSION'), '17\n'),
      message: /belongs to PostgreSQL 17, but this stack runs 18/,
    },
    {
      state: 'the data folder is missing',
      damage: () => replace(state.data_dir, null),
      message: /data is missing/,
    },
    {
      state: "the gateway's data is missing",
      damage: () => replace(devFolder(devDir).gatewayState, null),
      message: /gateway is missing/,
    },
    {
      state: 'the choices are missing',
      damage: () => replace(devFolder(devDir).choicesFile, null),
      message: /choices\.json is missing/,
    },
    {
      state: 'damaged choices',
      damage: () => replace(devFolder(devDir).choicesFile, '{"ports":'),
      message: /choices\.json is damaged/,
    },
    {
      state: 'damaged secrets',
      damage: () => replace(devFolder(devDir).secretsFile, '{"PLATFORM_SECRET":"hush"}'),
      message: /secrets\.json is damaged/,
    },
  ];

  /** Starts in this process, which says and ends nothing. @returns the line for the user */
  async function refusal(settings: Record<string, string>): Promise<string> {
    const said: string[] = [];
    const { PATH } = process.env;
    const attempt = startLocalStack(readSettings({ PATH, ...settings }), {
      report: (line) => said.push(line),
      restarts: false,
      prepared: PREPARED,
    });
    const refused = await attempt.then(
      (started) => started.stop(),
      (error: unknown) => error,
    );
    expect(refused).toBeInstanceOf(Refusal);
    const { message } = refused as Refusal;
    expect(message).toMatch(/^.+$/);
    expect(said).toEqual([]);
    expect(stackProcesses(settings.DEV_DIR ?? '')).toEqual([]);
    return message;
  }

  test.each(firstByDay(1, BROKEN))(
    '$state: refused in one line, and nothing is changed',
    async ({ damage, message }) => {
      damage();
      const before = snapshot();
      expect(await refusal({ DEV_DIR: devDir })).toMatch(message);
      expect(snapshot()).toEqual(before);
    },
  );

  test.runIf(isRoot)('a data folder of another user is refused', async () => {
    const { uid, gid } = statSync(state.data_dir);
    restore = () => chownSync(state.data_dir, uid, gid);
    chownSync(state.data_dir, 0, 0);
    expect(await refusal({ DEV_DIR: devDir })).toMatch(/belongs to user id 0/);
  });

  test('a folder that is not a data folder is refused', async () => {
    const dataDir = join(temporaryFolder(), 'mine');
    mkdirSync(dataDir);
    writeFileSync(join(dataDir, 'thesis.txt'), 'years of work');
    const fresh = join(dataDir, '../dev');
    expect(await refusal({ DEV_DIR: fresh, PGDATA_DIR: dataDir, ...(await freePorts()) })).toMatch(
      /is not a PostgreSQL data folder/,
    );
    expect(readdirSync(dataDir)).toEqual(['thesis.txt']);
    rmSync(join(dataDir, '..'), { recursive: true });
  });

  async function occupy(port: number): Promise<void> {
    const server: Server = createServer();
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
    restore = () => server.close();
  }

  test.each(firstByDay(1, ['GATEWAY_PORT', 'IDP_PORT', 'DIRECT_PORT', 'POOLED_PORT']))(
    'a %s that is taken is refused',
    async (name) => {
      const port = await freePort();
      await occupy(port);
      const folder = temporaryFolder();
      expect(await refusal({ ...(await freePorts()), DEV_DIR: folder, [name]: String(port) })).toBe(
        `port ${port} (${name}) is taken by another program`,
      );
      expect(readdirSync(folder)).toEqual([]);
      rmSync(folder, { recursive: true });
    },
  );

  test.runIf(IS_NIGHTLY)('a stored port that is taken now is refused', async () => {
    await occupy(state.pooled_port);
    expect(await refusal({ DEV_DIR: devDir })).toContain(`port ${state.pooled_port} (POOLED_PORT) is taken`);
  });

  test.runIf(IS_NIGHTLY)('a database port cannot be changed when connection URLs contain it', async () => {
    const port = String(await freePort());
    expect(await refusal({ DEV_DIR: devDir, DIRECT_PORT: port })).toContain(
      `DIRECT_PORT can't change to ${port}`,
    );
  });

  test.runIf(IS_NIGHTLY)('an invalid setting is named without its value', async () => {
    const { code, stderr } = await runStart({ DEV_DIR: devDir, GATEWAY_PORT: 'eighty' }).ended;
    expect([code, stderr]).toEqual([
      1,
      'branchgate: missing or invalid settings: GATEWAY_PORT (integer from 1 to 65535). Correct them in the environment of `npm start`; docs/operating.md lists all.\n',
    ]);
    // Those of the gateway and the agent too, before either has started.
    for (const [name, value, accepts] of [
      ['BRANCH_LIMIT_MAX', '300', 'integer from 1 to 100'],
      ['POOLER_MAX_CLIENTS', '5000', 'integer from 200 to 500'],
    ] as const) {
      const refused = await runStart({ DEV_DIR: devDir, [name]: value }).ended;
      expect(refused.code).toBe(1);
      expect(refused.stderr).toContain(`${name} (${accepts})`);
      expect(refused.stderr).not.toContain(value);
    }
  });
});

test('the next start reuses all data', async () => {
  // The ports of the first start are stored. What `npm start` runs is tested above.
  const next = await startStack({ devDir });
  try {
    expect(readStackFile(devDir)).toEqual({ ...state, pids: expect.anything() });
    const listed = await (await owner()).get('/api/v1/projects');
    expect(listed.body).toMatchObject({ projects: [{ name: 'Shop', status: 'active' }] });
  } finally {
    await next.stop();
  }
});

test.runIf(IS_NIGHTLY)('processes that a killed start left running are ended by the next start', async () => {
  await start({ DEV_DIR: devDir });
  const before = readStackFile(devDir).pids;
  stack.process.kill('SIGKILL');
  await stack.ended;
  // workerd runs on without a parent when its runner is killed.
  kill(before.gateway);
  expect(stackProcesses(devDir)).not.toEqual([]);

  const next = await start();
  expect(next.output()).toMatch(/ended \d+ processes that an earlier start had left running/);
  const running = stackProcesses(devDir).map(({ pid }) => pid);
  for (const pid of Object.values(before)) expect(running).not.toContain(pid);
});

test.runIf(IS_NIGHTLY)(
  'HOSTS=2 starts a second host, which gets projects and is found again by the next start',
  async () => {
    await interrupt(stack);
    await start({ DEV_DIR: devDir, HOSTS: '2' });
    const [second] = readStackFile(devDir).other_hosts;
    expect(second).toMatchObject({ name: 'local-2', pids: { agent: expect.any(Number) } });
    const api = await owner();
    // Each goes to the host with the fewest projects.
    const created = [await api.project('One'), await api.project('Other')];
    const project = created.find(({ host }) => host === 'local-2');
    if (!project) throw new Error('no project is on the second host');
    await api.allow(project.id);
    const { database_url, direct_url } = await api.credentials(project.id, 'main');
    const ports = [database_url, direct_url].map((url) => Number(new URL(url).port));
    expect(ports).toEqual([second?.pooled_port, second?.direct_port]);
    await query(direct_url, 'create table kept as select 7 as n');

    kill(second?.pids.agent);
    await eventually(async () => {
      const [now] = readStackFile(devDir).other_hosts;
      expect(now?.pids.agent).not.toBe(second?.pids.agent);
      expect(now?.pids.agent).toEqual(expect.any(Number));
    });
    expect(await interrupt(stack)).toMatchObject({ code: 0, stderr: '' });
    expect(stackProcesses(devDir)).toEqual([]);
    expect(existsSync(join(second?.host_dir ?? '', 'sockets'))).toBe(false);
    await start({ DEV_DIR: devDir, HOSTS: '2' });
    expect(await query(direct_url, 'select n from kept')).toEqual([{ n: 7 }]);
  },
);
