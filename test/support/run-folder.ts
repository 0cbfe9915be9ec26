import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { enableCompileCache } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { makeOnce } from '../../dev/build/make-once.ts';

/** Names the folder of this test run for the processes that run its files. */
const VARIABLE = 'BRANCHGATE_TEST_RUN';

/** Vitest's global set-up: one folder for what the files of a run share. */
export function setup(project: TestProject): (() => void) | undefined {
  // Another project of this run has made it.
  if (process.env[VARIABLE]) return;
  begin();
  const remove = () => {
    const folder = process.env[VARIABLE];
    delete process.env[VARIABLE];
    delete process.env.NODE_COMPILE_CACHE;
    if (folder) rmSync(folder, { recursive: true, force: true });
  };
  // Vitest skips the teardown when it only lists tests or is interrupted.
  process.once('exit', remove);
  // In watch mode the sources have changed since.
  project.onTestsRerun(() => {
    remove();
    begin();
  });
  return remove;
}

function begin(): void {
  const folder = makeFolder();
  process.env[VARIABLE] = folder;
  keepCompiled(folder);
}

/**
 * Node compiles each module once a run then: a thread or program that starts from sources takes half of the processor
 * time. The agent's threads run as another user.
 */
function keepCompiled(runFolder: string): void {
  const folder = join(runFolder, 'compiled');
  mkdirSync(folder);
  enableCompileCache(folder);
  for (const path of [folder, ...readdirSync(folder).map((name) => join(folder, name))])
    chmodSync(path, 0o777);
  process.env.NODE_COMPILE_CACHE = folder;
}

/**
 * Makes a file or folder once a test run, and once a process outside of Vitest. Processes that need it at the
 * same time may each make it; the first one to finish provides it.
 * @param make writes it to the path that it is given
 * @returns its path
 */
export function oncePerRun(name: string, make: (path: string) => Promise<void>): Promise<string> {
  const path = join(runFolder(), name);
  const making = MAKING.get(path) ?? makeOnce(path, make).finally(() => MAKING.delete(path));
  MAKING.set(path, making);
  return making;
}

/** What this process is making, by its path. */
const MAKING = new Map<string, Promise<string>>();

function runFolder(): string {
  const folder = process.env[VARIABLE];
  if (folder) return folder;
  const made = makeFolder();
  process.env[VARIABLE] = made;
  process.once('exit', () => rmSync(made, { recursive: true, force: true }));
  return made;
}

/** The servers' user can read it. */
function makeFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-run-'));
  chmodSync(folder, 0o755);
  return folder;
}
