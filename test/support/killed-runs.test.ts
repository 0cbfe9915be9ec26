import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { cleanUpKilledRun } from './killed-runs.ts';

let folder: string;
let children: ChildProcess[];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'killed-run-'));
  children = [];
});

afterEach(() => {
  for (const child of children) child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
});

async function runningWith(variable: string): Promise<ChildProcess> {
  const child = spawn('sleep', ['60'], { env: { PATH: process.env.PATH, STARTED_BY: variable } });
  children.push(child);
  await once(child, 'spawn');
  return child;
}

test('the processes and files of a killed run are removed, but no others', async () => {
  writeFileSync(join(folder, 'file'), '');
  const own = await Promise.all([folder, join(folder, 'stack')].map(runningWith));
  const other = await runningWith(`${folder}0`);
  const ends = own.map((child) => once(child, 'exit'));
  cleanUpKilledRun(folder);
  expect(await Promise.all(ends)).toEqual(own.map(() => [null, 'SIGKILL']));
  expect(existsSync(folder)).toBe(false);
  expect(other.signalCode ?? other.exitCode).toBeNull();
});
