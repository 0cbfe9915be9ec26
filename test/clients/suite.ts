import { execFileSync } from 'node:child_process';
import { existsSync, globSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';
import { expect } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';

/** Downloads stay here for the next run. */
const CACHE = join(ROOT, '.dev/suites');
/** The versions of their packages are the newest ones of this day, so that a run repeats the one before. */
const PUBLISHED_BEFORE = '2026-09-01';
/** Limits of time only end what hangs. */
export const SUITE_WITHIN_MS = 40 * 60_000;

export type Edit = readonly [file: string, text: string, replacement: string];

/** A test suite of others, which runs against a branch. */
export interface Suite {
  repository: string;
  tag: string;
  commit: string;
  /** The folders of the repository that the suite needs. */
  folders: readonly string[];
  /** The folder of its package. */
  root: string;
  /** The packages for development that its tests import. */
  needs: readonly string[];
  /** All packages of its tests with their versions, instead of those that it names. */
  packages?: Readonly<Record<string, string>>;
  /** Where its files name a server of their own; they get that of the environment. */
  edits: readonly Edit[];
  /** Sources in TypeScript that its tests import as JavaScript. */
  compiled: readonly { from: string; to: string; format: 'esm' | 'cjs' }[];
  /** Commands of a shell in `root`, which write to `RESULTS`. */
  run: string;
  /** The outcome of each case, by its name. */
  read: (results: string) => Outcome[];
}

interface Outcome {
  name: string;
  /** Why the case failed; null if it passed. */
  failure: string | null;
}

export const RESULTS = 'results.txt';
export const NODE = `'${process.execPath}'`;

interface MochaCase {
  fullTitle: string;
  err: { message?: string };
}

export function readMocha(text: string): Outcome[] {
  const { passes, failures } = JSON.parse(text) as { passes: MochaCase[]; failures: MochaCase[] };
  // A late error fails a case that has already passed or failed.
  const failed = new Map(failures.map(({ fullTitle, err }) => [fullTitle, err.message ?? 'failed']));
  return [
    ...passes.flatMap(({ fullTitle }) => (failed.has(fullTitle) ? [] : [{ name: fullTitle, failure: null }])),
    ...[...failed].map(([name, failure]) => ({ name, failure })),
  ];
}

/** Lines of `ok FILE` and `not ok FILE`, each after what its program printed if it failed. */
export function readLines(text: string): Outcome[] {
  let printed: string[] = [];
  return text.split('\n').flatMap((line) => {
    const [, not, name] = /^(not )?ok (\S+)$/.exec(line) ?? [];
    if (name === undefined) {
      printed.push(line);
      return [];
    }
    const failure = not === undefined ? null : printed.join('\n');
    printed = [];
    return [{ name, failure }];
  });
}

/** Cases of `go test -v`, each after what it printed. */
export function readGo(text: string): Outcome[] {
  const [, ...runs] = text.split(/^=== RUN +(?=[^/\s]+$)/m);
  return runs.flatMap((run) => {
    const [, outcome, name = ''] = /^--- (PASS|FAIL): (\S+)/m.exec(run) ?? [];
    // One that is skipped has no outcome.
    if (outcome === undefined) return [];
    return [{ name, failure: outcome === 'PASS' ? null : run }];
  });
}

export function readVitest(text: string): Outcome[] {
  const { testResults } = JSON.parse(text) as {
    testResults: {
      message: string;
      name: string;
      assertionResults: { fullName: string; status: string; failureMessages: string[] }[];
    }[];
  };
  return testResults.flatMap(({ assertionResults, message, name }) => {
    // A file that cannot be loaded has no cases.
    if (assertionResults.length === 0 && message) return [{ name, failure: message }];
    return assertionResults
      .filter(({ status }) => status === 'passed' || status === 'failed')
      .map(({ fullName, status, failureMessages }) => ({
        name: fullName,
        failure: status === 'passed' ? null : failureMessages.join('\n'),
      }));
  });
}

export const MOCHA = `${NODE} node_modules/mocha/bin/mocha.js --exit --reporter json --reporter-option output=${RESULTS}`;

/** @throws Error with what the program printed */
function call(folder: string, program: string, ...args: string[]): string {
  const env = { ...process.env, GIT_TERMINAL_PROMPT: '0' };
  return execFileSync(program, args, { cwd: folder, encoding: 'utf8', stdio: 'pipe', env, maxBuffer: 64e6 });
}

/** Installs a package with those of its packages for development that the tests need. */
function install(folder: string, { root, needs, packages }: Suite): void {
  const file = join(folder, root, 'package.json');
  // Suites of other languages have none.
  if (!existsSync(file)) return;
  const {
    devDependencies = {},
    workspaces: _,
    ...rest
  } = JSON.parse(readFileSync(file, 'utf8')) as {
    devDependencies?: Record<string, string>;
    type?: string;
    workspaces?: unknown;
  };
  const missing = needs.filter((name) => !(name in devDependencies));
  if (missing.length > 0) throw new Error(`${file} does not name ${missing.join(', ')}`);
  const kept = Object.fromEntries(needs.map((name) => [name, devDependencies[name]]));
  const all = packages
    ? { name: 'suite', type: rest.type, dependencies: packages }
    : { ...rest, devDependencies: kept };
  writeFileSync(file, JSON.stringify(all));
  const options = [
    `--before=${PUBLISHED_BEFORE}`,
    '--ignore-scripts',
    '--no-audit',
    '--no-fund',
    '--no-package-lock',
    '--legacy-peer-deps',
  ];
  call(join(folder, root), 'npm', 'install', ...options, '--no-workspaces');
}

/** Gets a suite from GitHub, unless an earlier run has. @returns its folder */
function download(name: string, suite: Suite): string {
  const folder = join(CACHE, `${name}-${suite.commit.slice(0, 12)}`);
  if (existsSync(folder)) return folder;
  const part = `${folder}.part`;
  rmSync(part, { recursive: true, force: true });
  const url = `https://github.com/${suite.repository}.git`;
  const clone = ['clone', '--quiet', '--depth=1', '--filter=blob:none', '--sparse'];
  try {
    call(ROOT, 'git', ...clone, `--branch=${suite.tag}`, url, part);
    call(part, 'git', 'sparse-checkout', 'set', ...suite.folders);
  } catch (error) {
    throw new Error(`the suite of ${name} could not be read from ${url}: this test needs GitHub`, {
      cause: error,
    });
  }
  expect(call(part, 'git', 'rev-parse', 'HEAD').trim(), `${suite.tag} was moved`).toBe(suite.commit);
  install(part, suite);
  renameSync(part, folder);
  return folder;
}

/** Makes its files as they are published, with its edits. */
async function prepare(folder: string, { edits, compiled, root }: Suite): Promise<void> {
  call(folder, 'git', 'checkout', '--quiet', '--force', '.');
  for (const [file, text, replacement] of edits) {
    const path = join(folder, root, file);
    const content = readFileSync(path, 'utf8');
    expect(content, path).toContain(text);
    writeFileSync(path, content.replaceAll(text, replacement));
  }
  for (const { from, to, format } of compiled) {
    const sources = globSync('**/*.ts', { cwd: join(folder, root, from) });
    await build({
      entryPoints: sources
        .filter((file) => !file.endsWith('.d.ts'))
        .map((file) => join(folder, root, from, file)),
      outbase: join(folder, root, from),
      outdir: join(folder, root, to),
      format,
      platform: 'node',
      target: 'node24',
      logLevel: 'error',
    });
  }
}

/** Rows of a suite in the table of docs/clients.md whose second column has this head. */
function documented(suite: string, column: 'version' | 'case'): string[][] {
  const tables = readFileSync(join(ROOT, 'docs/clients.md'), 'utf8').split('\n\n');
  const table = tables.find((text) => text.startsWith(`| suite | ${column} |`));
  if (!table) throw new Error(`docs/clients.md has no table of suites by ${column}`);
  const rows = table.split('\n').map((line) =>
    line
      .split(/(?<!\\)\|/)
      .slice(1, -1)
      .map((cell) =>
        cell
          .trim()
          .replaceAll('\\|', '|')
          .replace(/^(`+) ?(.*?) ?\1$/, '$2'),
      ),
  );
  return rows.filter(([first]) => first === suite);
}

/**
 * Runs a suite. It has to fail where docs/clients.md says so, and nowhere else.
 * @param run runs a script of a shell, with the URLs of a branch in its environment
 */
export async function expectDocumented(
  name: string,
  suite: Suite,
  run: (script: string) => Promise<{ stdout: string; stderr: string }>,
): Promise<void> {
  const folder = download(name, suite);
  await prepare(folder, suite);
  const root = join(folder, suite.root);
  const results = join(root, RESULTS);
  rmSync(results, { force: true });
  const { stdout, stderr } = await run(`cd '${root}'
    export PATH='${join(process.execPath, '..')}':"$PATH" BRANCHGATE_LOG="$HOME/log"
    export PGPASSWORD="$(${NODE} -p 'decodeURIComponent(new URL(process.env.DIRECT_URL).password)')"
    ${suite.run}`);
  expect(existsSync(results), `${stdout}\n${stderr}`).toBe(true);

  const outcomes = suite.read(readFileSync(results, 'utf8'));
  const known = documented(name, 'case').map(([, test]) => test);
  const failed = outcomes.filter(({ failure }) => failure !== null);
  for (const { name: test, failure } of failed)
    if (!known.includes(test)) console.error(`${name}: ${test}\n${failure}`);
  expect(failed.map(({ name: test }) => test).filter((test) => !known.includes(test))).toEqual([]);
  // A listed case must exist, and no file may have lost its cases.
  expect(outcomes.map(({ name: test }) => test)).toEqual(expect.arrayContaining(known));
  const [, version, cases] = documented(name, 'version')[0] ?? [];
  expect([suite.tag, outcomes.length]).toEqual([expect.stringContaining(`${version}`), Number(cases)]);
}
