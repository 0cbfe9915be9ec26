import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { readMachineLimits } from '../../../agent/maintenance/checks.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'branchgate-machine-'));
  write('data/postmaster.pid', '42\n/data\n');
  write('proc/sys/vm/overcommit_memory', '2\n');
});
afterEach(() => rmSync(root, { recursive: true }));

function write(path: string, text: string) {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text);
}

const memoryMax = async () => (await readMachineLimits(join(root, 'data'), root)).memoryMax;

test('the lowest limit of the group and of those around it counts', async () => {
  write('proc/42/cgroup', '0::/system.slice/postgresql.service\n');
  expect(await memoryMax()).toBe(null);
  write('sys/fs/cgroup/system.slice/postgresql.service/memory.max', 'max\n');
  expect(await memoryMax()).toBe(Infinity);
  write('sys/fs/cgroup/system.slice/memory.max', '4096\n');
  expect(await memoryMax()).toBe(4096);
  write('sys/fs/cgroup/system.slice/postgresql.service/memory.max', '1024\n');
  expect(await memoryMax()).toBe(1024);
});

test('without cgroup v2, or without a server, the limit is unknown', async () => {
  write('proc/42/cgroup', '4:memory:/postgresql\n');
  expect(await readMachineLimits(join(root, 'data'), root)).toEqual({ overcommit: 2, memoryMax: null });
  expect(await readMachineLimits(join(root, 'elsewhere'), join(root, 'elsewhere'))).toEqual({
    overcommit: null,
    memoryMax: null,
  });
});
