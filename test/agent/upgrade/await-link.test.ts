import { chownSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { askToEnd, awaitLink, runningAgent } from '../../../agent/upgrade/await-link.ts';
import { isRunning, type RunRecord, startOf, writeRunRecord } from '../../../agent/upgrade/trial.ts';

let dir: string;
const record: RunRecord = {
  pid: process.pid,
  started: startOf(process.pid),
  sha256: '',
  linked: true,
  proven: null,
  trial: null,
};
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'branchgate-record-'));
});
afterEach(() => {
  vi.restoreAllMocks();
  rmSync(dir, { recursive: true });
});

test('an agent that ends just before the signal counts as asked to end', () => {
  writeRunRecord(dir, record);
  const kill = vi.spyOn(process, 'kill').mockImplementation(() => {
    throw Object.assign(new Error('kill ESRCH'), { code: 'ESRCH' });
  });
  expect(askToEnd(dir)).toBe(process.pid);
  expect(kill).toHaveBeenCalledWith(process.pid, 'SIGUSR2');
});

test('an agent that ran at the start of an upgrade is known after it was killed', async () => {
  writeRunRecord(dir, record);
  const before = runningAgent(dir);
  expect(before).toBe(process.pid);
  writeRunRecord(dir, { ...record, pid: 2 ** 22 + 1, started: '1' });
  expect([runningAgent(dir), askToEnd(dir)]).toEqual([null, null]);
  // The service manager has started the new program.
  writeRunRecord(dir, { ...record, sha256: 'new' });
  const expected = { stateDir: dir, sha256: 'new', endWithin: 1_000, linkWithin: 1_000 };
  expect(await awaitLink(2 ** 22 + 1, expected)).toBe('linked');
});

test('without the folder of the agent, no process is the agent', () => {
  expect(isRunning(join(dir, 'missing'), record)).toBe(false);
  expect(isRunning(dir, record)).toBe(true);
});

test.runIf(process.getuid?.() === 0)(
  'a link to a file of root does not make a process of root the agent',
  () => {
    chownSync(dir, 65_534, 65_534);
    symlinkSync('/etc/passwd', join(dir, 'run.json'));
    expect(isRunning(dir, record)).toBe(false);
  },
);
