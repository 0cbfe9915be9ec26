import { chownSync, mkdirSync, readdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { stackProcesses } from '../../dev/stack/leftovers.ts';
import type { StackState } from '../../dev/stack/stack.ts';
import { freePort } from '../support/free-port.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import { freePorts, temporaryFolder } from '../support/stack/stack.ts';
import { interrupt, readStackFile, runStart, untilReady } from '../support/stack/started-stack.ts';

const isRoot = process.getuid?.() === 0;

/** A stack that ran once. Every test damages a part of it and restores it. */
let devDir: string;
let env: Record<string, string>;
let state: StackState;

beforeAll(async () => {
  devDir = temporaryFolder();
  env = { DEV_DIR: devDir, ...(await freePorts()) };
  const stack = runStart(env);
  await untilReady(stack);
  state = readStackFile(devDir);
  await interrupt(stack);
});

afterAll(() => rmSync(devDir, { recursive: true, force: true }));

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

async function refusal(settings: Record<string, string>): Promise<string> {
  const { code, stdout, stderr } = await runStart(settings).ended;
  expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
  expect(stderr).toMatch(/^branchgate: .*\n$/);
  expect(stackProcesses(settings.DEV_DIR ?? '')).toEqual([]);
  return stderr;
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
      `branchgate: port ${port} (${name}) is taken by another program\n`,
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

test('an invalid setting is named without its value', async () => {
  const line = await refusal({ DEV_DIR: devDir, GATEWAY_PORT: 'eighty' });
  expect(line).toBe('branchgate: invalid settings: GATEWAY_PORT\n');
});
