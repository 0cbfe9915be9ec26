import { execFile, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ROOT } from '../../dev/build/repository.ts';

const run = promisify(execFile);
const PYTHON = process.env.PYTHON ?? 'python3';
/** Python and pytest are no part of the set-up: PYTHONPATH may name where they are. */
export const HAS_PYTEST = spawnSync(PYTHON, ['-m', 'pytest', '--version']).status === 0;

/** Runs the tests of a folder with the plugin. @throws Error with `stdout` if one fails */
export function runPytest(
  folder: string,
  env: Record<string, string>,
  ...options: string[]
): Promise<{ stdout: string }> {
  const path = [join(ROOT, 'python'), process.env.PYTHONPATH].filter(Boolean).join(':');
  const { PATH = '' } = process.env;
  const plugins = ['-p', 'pytest_branchgate', '-p', 'no:cacheprovider'];
  return run(PYTHON, ['-m', 'pytest', ...plugins, ...options, folder], {
    env: { PATH, PYTHONPATH: path, PYTHONDONTWRITEBYTECODE: '1', ...env },
  });
}
