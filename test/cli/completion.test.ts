import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';

const MAIN = join(import.meta.dirname, '../../cli/main.ts');
const folder = mkdtempSync(join(tmpdir(), 'branchgate-completion-'));
const env = {
  PATH: [folder, process.env.PATH].join(delimiter),
  HOME: folder,
  XDG_CONFIG_HOME: folder,
  TERM: 'xterm',
};

beforeAll(() =>
  writeFileSync(join(folder, 'branchgate'), `#!/bin/sh\nexec "${process.execPath}" "${MAIN}" "$@"\n`, {
    mode: 0o755,
  }),
);
afterAll(() => rmSync(folder, { recursive: true }));

/** A shell without its editor: how it completes a line, and prints one candidate a line. */
interface Shell {
  begin: string;
  complete: (...words: string[]) => string;
}

const quoted = (words: string[]) => words.map((word) => `'${word}'`).join(' ');

const SHELLS: Record<string, Shell> = {
  bash: {
    begin: 'source <(branchgate completion bash)',
    complete: (...words) => `COMP_WORDS=(${quoted(words)}); COMP_CWORD=${words.length - 1}
      _branchgate; printf '%s\\n' "\${COMPREPLY[@]}"`,
  },
  // `compadd` exists in the editor only. It gets `--` first.
  zsh: {
    begin: `compdef() { }; compadd() { shift; print -rl -- "$@" }; _files() { print files }
      source <(branchgate completion zsh)`,
    complete: (...words) => `words=(${quoted(words)}); CURRENT=${words.length}; _branchgate`,
  },
  fish: {
    begin: 'branchgate completion fish | source',
    complete: (...words) => `complete -C '${words.join(' ')}'`,
  },
};

describe.each(Object.entries(SHELLS))('completion in %s', (shell, { begin, complete }) => {
  const run = (...lines: string[]) =>
    execFileSync(shell, ['-c', [begin, ...lines].join('\n')], { cwd: folder, env, encoding: 'utf8' })
      .trimEnd()
      .split('\n');
  const isMissing = spawnSync(shell, ['--version']).error !== undefined;
  beforeEach(({ skip }) => skip(isMissing, `${shell} is not installed`));

  test('offers commands', () => {
    expect(run(complete('branchgate', 'branch', 're')).toSorted()).toEqual(['renew', 'reset', 'restore']);
  });

  test('runs nothing that is a name', () => {
    const names = ['$(touch pwned)', '`touch pwned`', 'two words'];
    const named = join(folder, 'named');
    mkdirSync(named, { recursive: true });
    writeFileSync(join(named, 'branchgate'), `#!/bin/sh\nprintf '%s\\n' ${quoted(names)}\n`, { mode: 0o755 });
    const path = shell === 'fish' ? `set -gx PATH ${named} $PATH` : `PATH=${named}:$PATH`;
    const shown = run(path, complete('branchgate', 'rows', ''));
    const expected =
      shell === 'bash' ? ['\\$\\(touch\\ pwned\\)', '\\`touch\\ pwned\\`', 'two\\ words'] : names;
    expect(shown.toSorted()).toEqual(expected.toSorted());
    expect(existsSync(join(folder, 'pwned'))).toBe(false);
  });
});
