import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { runControlTool } from '../../../agent/control-tool/control-tool.ts';
import { EXIT_CODES } from '../../../agent/control-tool/exit-codes.ts';
import { sha256Of, siblingOf } from '../../../agent/upgrade/program-file.ts';
import { eventually } from '../../support/eventually.ts';

const TOOL = join(import.meta.dirname, '../../../agent/main.ts');

let dir: string;
let program: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'branchgate-upgrades-'));
  program = join(dir, 'agent.mjs');
  writeFileSync(program, "console.log('1.0.0');");
  vi.stubEnv('STATE_DIR', dir);
});
afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
  rmSync(dir, { recursive: true });
});

/** The arguments of the tool for a program with this text. */
function upgradeTo(text: string): string[] {
  const file = join(dir, 'download.mjs');
  writeFileSync(file, text);
  return ['upgrade', file, '--sha256', sha256Of(Buffer.from(text)), '--program', program];
}

/** Prints its version only after the tool that asks for it has ended. */
const HANGS = 'const tool = process.ppid; setInterval(() => process.ppid === tool || process.exit(), 20);';

test('a second upgrade is refused until the first one has ended, also by a kill', async () => {
  const first = spawn(process.execPath, [TOOL, ...upgradeTo(HANGS)], { stdio: 'ignore' });
  const ended = once(first, 'exit');
  try {
    const written = () => readFileSync(siblingOf(program, 'new'), 'utf8');
    await eventually(async () => expect(written()).toBe(HANGS));
    const said = vi.spyOn(process.stderr, 'write').mockReturnValue(true);
    expect(await runControlTool(upgradeTo("console.log('1.1.0');"), null)).toBe(EXIT_CODES.refused.code);
    expect(said.mock.lastCall?.[0]).toContain('another upgrade of this program is in progress');
    expect(written()).toBe(HANGS);
  } finally {
    first.kill('SIGKILL');
    await ended;
  }
  vi.spyOn(process.stdout, 'write').mockReturnValue(true);
  expect(await runControlTool(upgradeTo("console.log('1.1.0');"), null)).toBe(EXIT_CODES.ok.code);
  expect(readFileSync(program, 'utf8')).toContain('1.1.0');
});
