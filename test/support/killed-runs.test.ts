import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { cleanUpKilledRuns, folderOfRun } from './killed-runs.ts';

/** Higher than any process id of Linux. */
const ENDED = 2 ** 22 + 1;

let parent: string;
let folder: string;
let children: ChildProcess[];

beforeEach(() => {
  parent = mkdtempSync(join(tmpdir(), 'killed-runs-'));
  folder = folderOfRun(parent, ENDED);
  mkdirSync(folder);
  children = [];
});

afterEach(() => {
  for (const child of children) child.kill('SIGKILL');
  rmSync(parent, { recursive: true, force: true });
});

async function runningWith(variable: string): Promise<ChildProcess> {
  const child = spawn('sleep', ['60'], { env: { PATH: process.env.PATH, STARTED_BY: variable } });
  children.push(child);
  await once(child, 'spawn');
  return child;
}

test('the processes and files of killed runs are removed, but no others', async () => {
  writeFileSync(join(folder, 'file'), '');
  const own = await Promise.all([folder, join(folder, 'stack')].map(runningWith));
  const others = await Promise.all([folderOfRun(parent, process.pid), `${folder}x`].map(runningWith));
  mkdirSync(folderOfRun(parent, process.pid));
  const ends = own.map((child) => once(child, 'exit'));
  cleanUpKilledRuns(parent);
  expect(await Promise.all(ends)).toEqual(own.map(() => [null, 'SIGKILL']));
  expect(existsSync(folder)).toBe(false);
  expect(existsSync(folderOfRun(parent, process.pid))).toBe(true);
  expect(others.map(({ signalCode, exitCode }) => signalCode ?? exitCode)).toEqual([null, null]);
});
