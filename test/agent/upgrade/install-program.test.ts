import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { INSTALLATION_STEPS, restorePrevious } from '../../../agent/upgrade/install-program.ts';
import { siblingOf } from '../../../agent/upgrade/program-file.ts';
import { hasFailed, Trial } from '../../../agent/upgrade/trial.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

let dir: string;
let program: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'branchgate-upgrade-'));
  program = join(dir, 'agent.mjs');
  writeFileSync(program, programOf('1.0.0', 'links'));
  startAgent();
});
afterEach(() => rmSync(dir, { recursive: true }));

const programOf = (version: string, behaviour: 'links' | 'fails') =>
  `console.log('${version}'); // ${behaviour}\n`;

/** Starts the agent as its service manager does, until one program links. @returns its version */
function startAgent(): string {
  for (let start = 0; start < 10; start += 1) {
    const begun = Trial.begin(program, dir);
    const file = 'instead' in begun ? begun.instead : program;
    const trial = 'instead' in begun ? Trial.begin(file, dir) : begun;
    const text = readFileSync(file, 'utf8');
    if (text.includes('links') && trial instanceof Trial) {
      trial.setLinked(true);
      return /'(.*)'/.exec(text)?.[1] ?? '';
    }
  }
  throw new Error('no program links');
}

/** The steps of an installation, up to a kill. */
async function install(text: string, steps = INSTALLATION_STEPS.length): Promise<void> {
  for (const step of INSTALLATION_STEPS.slice(0, steps))
    await step({ program, stateDir: dir, bytes: Buffer.from(text) });
}

const KILLS = INSTALLATION_STEPS.map((step, index) => [step.name, index] as const);

test.each(KILLS)('killed before %s, the agent works, and the upgrade can be repeated', async (_, steps) => {
  await install(programOf('1.1.0', 'links'), steps);
  expect(startAgent()).toBe('1.0.0');
  await install(programOf('1.1.0', 'links'));
  expect(startAgent()).toBe('1.1.0');
});

test('killed after the swap, the new program runs', async () => {
  await install(programOf('1.1.0', 'links'));
  expect(startAgent()).toBe('1.1.0');
});

test('every program has the permissions of the installed one, whatever root’s umask is', async () => {
  chmodSync(program, 0o755);
  const before = process.umask(0o077);
  try {
    await install(programOf('1.1.0', 'links'));
  } finally {
    process.umask(before);
  }
  for (const file of [program, siblingOf(program, 'previous')])
    expect(statSync(file).mode & 0o777).toBe(0o755);
});

test('a program that ends again and again is left for the one before it, without the tool', async () => {
  await install(programOf('1.1.0', 'fails'));
  expect(startAgent()).toBe('1.0.0');
  expect(hasFailed(program, dir)).toBe(true);
  expect(startAgent(), 'the trial is not repeated').toBe('1.0.0');

  restorePrevious(program);
  expect(hasFailed(program, dir)).toBe(false);
  expect(existsSync(siblingOf(program, 'previous')), 'the agent may run from there').toBe(true);
  expect(startAgent()).toBe('1.0.0');
});

/** Each of them starts programs. */
const LATER_KILLS = IS_NIGHTLY ? KILLS : KILLS.slice(-1);

test.each(LATER_KILLS)('after a failed upgrade, another one may be killed before %s', async (_, steps) => {
  await install(programOf('1.1.0', 'fails'));
  startAgent();
  await install(programOf('1.2.0', 'fails'), steps);
  expect(startAgent()).toBe('1.0.0');
  await install(programOf('1.3.0', 'fails'));
  expect(startAgent()).toBe('1.0.0');
  await install(programOf('1.4.0', 'links'));
  expect(startAgent()).toBe('1.4.0');
});

test('a program still on trial never becomes the one to go back to', async () => {
  await install(programOf('1.1.0', 'fails'));
  await install(programOf('1.2.0', 'fails'));
  expect(readFileSync(siblingOf(program, 'previous'), 'utf8')).toContain('1.0.0');
  expect(startAgent()).toBe('1.0.0');
});

test('a program that does not link in time has failed; installed again, it is tried again', async () => {
  await install(programOf('1.1.0', 'fails'));
  const begun = Trial.begin(program, dir);
  if (!(begun instanceof Trial)) throw new Error('no trial');
  expect(begun.isPending).toBe(true);
  begun.fail();
  expect(Trial.begin(program, dir)).toEqual({ instead: siblingOf(program, 'previous') });

  await install(programOf('1.1.0', 'fails'));
  utimesSync(program, 1, 1);
  expect(Trial.begin(program, dir)).toMatchObject({ isPending: true });
});

test('a program that has linked once is not on trial', async () => {
  await install(programOf('1.1.0', 'links'));
  startAgent();
  expect(existsSync(siblingOf(program, 'previous'))).toBe(true);
  for (let start = 0; start < 10; start += 1)
    expect(Trial.begin(program, dir)).toMatchObject({ isPending: false });
});

test('without a folder to write to, the agent runs without a trial', async () => {
  await install(programOf('1.1.0', 'links'));
  expect(Trial.begin(program, join(dir, 'missing'))).toMatchObject({ isPending: true });
});

test('a program that does not start is not installed', async () => {
  const before = readFileSync(program, 'utf8');
  await expect(install("throw new Error('defect');")).rejects.toThrow('does not start');
  expect(readFileSync(program, 'utf8')).toBe(before);
});
