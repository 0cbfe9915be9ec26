import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { SCRIPTS } from '../../cli/commands/completion.ts';

const NAMES = ['$(touch pwned)', '`touch pwned`', 'two words'];
const quoted = (words: readonly string[]) => words.map((word) => `'${word}'`).join(' ');

const folder = mkdtempSync(join(tmpdir(), 'branchgate-completion-'));
const env = { PATH: [folder, process.env.PATH].join(delimiter), HOME: folder, TERM: 'xterm' };

beforeAll(() => {
  const commandLine = `#!/bin/sh\nprintf '[%s]' "$@" > asked\nprintf '%s\\n' ${quoted(NAMES)}\n`;
  writeFileSync(join(folder, 'branchgate'), commandLine, { mode: 0o755 });
});
afterAll(() => rmSync(folder, { recursive: true }));

/** How a shell without its editor completes `branchgate rows `, and prints one candidate a line. */
const SHELLS: Record<string, (script: string) => string> = {
  bash: (script) => `source ${script}
    COMP_WORDS=(branchgate rows ''); COMP_CWORD=2; _branchgate; printf '%s\\n' "\${COMPREPLY[@]}"`,
  // `compadd`, which quotes what it inserts, exists in the editor only. It gets `--` first.
  zsh: (script) => `compdef() { }; compadd() { shift; print -rl -- "$@" }; source ${script}
    words=(branchgate rows ''); CURRENT=3; _branchgate`,
  fish: (script) => `source ${script}; complete -C 'branchgate rows '`,
};

test.for(Object.keys(SHELLS))('completion in %s offers names, and runs none of them', (shell, { skip }) => {
  skip(spawnSync(shell, ['--version']).error !== undefined, `${shell} is not installed`);
  const script = join(folder, `script.${shell}`);
  writeFileSync(script, SCRIPTS[shell]?.('branchgate') ?? '');
  const line = SHELLS[shell]?.(script) ?? '';
  const output = execFileSync(shell, ['-c', line], { cwd: folder, env, encoding: 'utf8' });
  expect(readFileSync(join(folder, 'asked'), 'utf8')).toBe('[__complete][--][rows][]');
  const inserted = ['\\$\\(touch\\ pwned\\)', '\\`touch\\ pwned\\`', 'two\\ words'];
  expect(output.trimEnd().split('\n').toSorted()).toEqual((shell === 'bash' ? inserted : NAMES).toSorted());
  expect(existsSync(join(folder, 'pwned'))).toBe(false);
});
