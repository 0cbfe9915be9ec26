import { execFile } from 'node:child_process';
import { copyFileSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { temporaryFolder } from '../support/stack/stack.ts';

const run = promisify(execFile);

/** Installs three packages of four, which takes as long as the progress is repeated. */
const NPM = `
  const { mkdirSync, writeFileSync } = require('node:fs');
  if (process.argv[2] !== 'ci') process.exit(1);
  for (const name of ['a', 'b', '@scope/c']) mkdirSync('node_modules/' + name, { recursive: true });
  setTimeout(() => writeFileSync('node_modules/.package-lock.json', '{}'), 6_000);`;

const LOCK = `{
  "packages": {
    "": {},
    "node_modules/a": {},
    "node_modules/b": {},
    "node_modules/@scope/c": {},
    "node_modules/d": {}
  }
}`;

test.runIf(IS_NIGHTLY)('the set-up says how far npm is, and does nothing the next time', async () => {
  const folder = temporaryFolder();
  mkdirSync(join(folder, 'dev'));
  copyFileSync(join(ROOT, 'dev/setup'), join(folder, 'dev/setup'));
  writeFileSync(join(folder, 'package-lock.json'), LOCK);
  writeFileSync(join(folder, 'npm.cjs'), NPM);
  const { PATH = '' } = process.env;
  const env = { PATH, npm_node_execpath: process.execPath, npm_execpath: join(folder, 'npm.cjs') };
  const setUp = () => run('sh', ['dev/setup'], { cwd: folder, env });
  expect((await setUp()).stdout).toMatch(
    /^setup: installing packages \(npm ci\)\nsetup: [34] of about 4 packages\n/,
  );
  expect((await setUp()).stdout).toBe('');
  rmSync(folder, { recursive: true });
});
