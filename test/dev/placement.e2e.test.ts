import { cpSync, existsSync, linkSync, mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { freePorts, temporaryFolder } from '../support/stack/stack.ts';
import {
  interrupt,
  readStackFile,
  runStart,
  type StartedStack,
  untilReady,
} from '../support/stack/started-stack.ts';

const FOLDERS = ['agent', 'client', 'console', 'dev', 'edge', 'mcp', 'shared'];
const isRoot = process.getuid?.() === 0;

const started: StartedStack[] = [];
const folders: string[] = [];

afterEach(async () => {
  for (const stack of started.splice(0)) await interrupt(stack);
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
});

async function start(env: Record<string, string>, from?: { root: string; node: string }) {
  const stack = runStart(env, from);
  started.push(stack);
  await untilReady(stack);
  return stack;
}

/** A checkout with its own node that only root can access, as in root's home. */
function checkoutOfRoot(): { root: string; node: string } {
  const root = mkdtempSync(join(tmpdir(), 'branchgate-root-'));
  folders.push(root);
  for (const name of [...FOLDERS, 'package.json', 'tsconfig.base.json', 'wrangler.toml']) {
    cpSync(join(ROOT, name), join(root, name), { recursive: true });
  }
  symlinkSync(join(ROOT, 'node_modules'), join(root, 'node_modules'));
  const node = join(root, 'node');
  linkSync(process.execPath, node);
  return { root, node };
}

test.runIf(isRoot && IS_NIGHTLY)(
  'in a folder that only root can access, the database host is placed elsewhere',
  async () => {
    const checkout = checkoutOfRoot();
    const devDir = join(checkout.root, '.dev');
    const ports = await freePorts();

    const first = await start(ports, checkout);
    const state = readStackFile(devDir);
    folders.push(state.host_dir);
    expect(state.host_dir).toMatch(/^\/var\/lib\/branchgate-dev\/[0-9a-f]{12}$/);
    expect(state.host_user).not.toBe('root');
    expect(first.output()).toContain(state.data_dir);
    for (const part of ['postgres', 'pgbouncer', 'agent'] as const) {
      expect(statSync(`/proc/${state.pids[part]}`).uid, part).not.toBe(0);
    }
    await interrupt(first);

    const second = await start({}, checkout);
    expect(readStackFile(devDir)).toEqual({ ...state, pids: expect.anything() });
    await interrupt(second);

    // Deleting .dev deletes everything: the next start does not reuse the old database host.
    rmSync(devDir, { recursive: true });
    await start(ports, checkout);
    expect(readStackFile(devDir).host_dir).toBe(state.host_dir);
  },
);

test.runIf(IS_NIGHTLY)(
  'PGDATA_DIR moves the data, a long DEV_DIR works, and a taken default port is replaced',
  async () => {
    const folder = temporaryFolder();
    folders.push(folder);
    const devDir = join(folder, 'a-long-name'.repeat(10));
    const dataDir = join(folder, 'data');
    mkdirSync(devDir);
    mkdirSync(dataDir);
    const { GATEWAY_PORT: _left_out, ...ports } = await freePorts();
    // The port is taken by this test, or already by another program.
    const occupant = createServer().on('error', () => {});
    await new Promise((resolve) =>
      occupant.listen(8787, '127.0.0.1', () => resolve(null)).once('error', resolve),
    );
    try {
      await start({ DEV_DIR: devDir, PGDATA_DIR: dataDir, ...ports });
    } finally {
      occupant.close();
    }
    const { base_url, data_dir } = readStackFile(devDir);
    expect(base_url).not.toBe('http://127.0.0.1:8787');
    expect(data_dir).toBe(dataDir);
    expect(existsSync(join(dataDir, 'PG_VERSION'))).toBe(true);
  },
);
