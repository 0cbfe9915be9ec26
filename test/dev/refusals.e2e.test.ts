import { chownSync, mkdirSync, readdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { stackProcesses } from '../../dev/stack/leftovers.ts';
import type { StackState } from '../../dev/stack/stack.ts';
import { freePort } from '../support/free-port.ts';
import { freePorts, temporaryFolder } from '../support/stack/stack.ts';
import { interrupt, readStackFile, runStart, untilReady } from '../support/stack/started-stack.ts';

const isRoot = process.getuid?.() === 0;

/** A stack that has run once; every test spoils something of it and puts it right again. */
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

/** Puts another file in the place of one, or takes it away. */
function replace(path: string, text: string | null) {
  renameSync(path, `${path}.kept`);
  if (text !== null) writeFileSync(path, text);
  restore = () => {
    rmSync(path, { recursive: true, force: true });
    renameSync(`${path}.kept`, path);
  };
}

/** Names and times of all there is; a start that changes nothing leaves it as it was. */
const picture = () =>
  readdirSync(devDir, { recursive: true, encoding: 'utf8' })
    .map((name) => ({ name, at: statSync(join(devDir, name)).mtimeMs }))
    .sort((a, b) => a.name.localeCompare(b.name));

interface Broken {
  state: string;
  spoil: () => void;
  says: RegExp;
}

const BROKEN: Broken[] = [
  {
    state: 'PG_VERSION is missing',
    spoil: () => replace(join(state.data_dir, 'PG_VERSION'), null),
    says: /PG_VERSION is missing/,
  },
  {
    state: 'another major version',
    spoil: () => replace(join(state.data_dir, 'PG_VERSION'), '17\n'),
    says: /is of PostgreSQL 17, this stack runs 18/,
  },
  { state: 'the data folder is gone', spoil: () => replace(state.data_dir, null), says: /data is gone/ },
  {
    state: "the gateway's data is gone",
    spoil: () => replace(devFolder(devDir).gatewayState, null),
    says: /gateway is gone/,
  },
  {
    state: 'the choices are gone',
    spoil: () => replace(devFolder(devDir).choicesFile, null),
    says: /choices\.json is gone/,
  },
  {
    state: 'damaged choices',
    spoil: () => replace(devFolder(devDir).choicesFile, '{"ports":'),
    says: /choices\.json is damaged/,
  },
  {
    state: 'damaged secrets',
    spoil: () => replace(devFolder(devDir).secretsFile, '{"PLATFORM_SECRET":"hush"}'),
    says: /secrets\.json is damaged/,
  },
];

async function refusal(settings: Record<string, string>): Promise<string> {
  const { code, stdout, stderr } = await runStart(settings).ended;
  expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
  expect(stderr).toMatch(/^branchgate: .*\n$/);
  expect(stackProcesses(settings.DEV_DIR ?? '')).toEqual([]);
  return stderr;
}

test.each(BROKEN)('$state: refused in one line, nothing changed', async ({ spoil, says }) => {
  spoil();
  const before = picture();
  expect(await refusal({ DEV_DIR: devDir })).toMatch(says);
  expect(picture()).toEqual(before);
});

test.runIf(isRoot)('a data folder of another user is refused', async () => {
  const { uid, gid } = statSync(state.data_dir);
  restore = () => chownSync(state.data_dir, uid, gid);
  chownSync(state.data_dir, 0, 0);
  expect(await refusal({ DEV_DIR: devDir })).toMatch(/belongs to user id 0/);
});

test('a folder that is no data folder is not taken for one', async () => {
  const dataDir = join(temporaryFolder(), 'mine');
  mkdirSync(dataDir);
  writeFileSync(join(dataDir, 'thesis.txt'), 'years of work');
  const fresh = join(dataDir, '../dev');
  expect(await refusal({ DEV_DIR: fresh, PGDATA_DIR: dataDir, ...(await freePorts()) })).toMatch(
    /no PostgreSQL data folder/,
  );
  expect(readdirSync(dataDir)).toEqual(['thesis.txt']);
  rmSync(join(dataDir, '..'), { recursive: true });
});

async function occupy(port: number): Promise<void> {
  const server: Server = createServer();
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  restore = () => server.close();
}

test.each(['GATEWAY_PORT', 'IDP_PORT', 'DIRECT_PORT', 'POOLED_PORT'])(
  '%s asked for and taken: refused',
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

test('a kept port that is taken by now is refused', async () => {
  await occupy(state.pooled_port);
  expect(await refusal({ DEV_DIR: devDir })).toContain(`port ${state.pooled_port} (POOLED_PORT) is taken`);
});

test('a database port can not be changed once connection URLs name it', async () => {
  const port = String(await freePort());
  expect(await refusal({ DEV_DIR: devDir, DIRECT_PORT: port })).toContain(
    `DIRECT_PORT can't change to ${port}`,
  );
});

test('a setting that is no port is named, not shown', async () => {
  const line = await refusal({ DEV_DIR: devDir, GATEWAY_PORT: 'eighty' });
  expect(line).toBe('branchgate: invalid settings: GATEWAY_PORT\n');
});
