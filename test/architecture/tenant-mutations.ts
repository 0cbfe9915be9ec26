import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import {
  cpSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join, relative } from 'node:path';
import { parseArgs } from 'node:util';
import { filesOf } from './rooms.ts';

/**
 * Removes each condition of the gateway's queries about a tenant, a provider or a project, one after another in a copy of the
 * repository, and runs the tests that evaluate it: a condition without which they pass is one that nobody would miss.
 *
 *     node test/architecture/tenant-mutations.ts [--only edge/people] [--tests test/edge/people] [--list] [--seconds 600]
 *
 * One run of vitest tries one condition in each of several test files. The first run notes which file evaluates which
 * condition. `.dev/tenant-mutations.json` keeps that and what was found, so that an interrupted run continues, and a later
 * one tries what has changed. Survivors fail the run, unless `tenant-mutations.json` says why the condition changes nothing.
 */

const ROOT = join(import.meta.dirname, '../..');
/** Reasons by the name of a condition, as the run prints it. */
const EQUIVALENT: Record<string, string> = JSON.parse(
  readFileSync(join(import.meta.dirname, 'tenant-mutations.json'), 'utf8'),
);
const NAMES = 'tenantId|providerId|projectId';
const COLUMNS = 'tenant_id|provider_id|project_id';
/** Beginnings of a call of drizzle about such a column. */
const CALL = new RegExp(`\\b(?:eq|inArray|isOneOf|isNull)\\(\\s*[\\w.]+\\.(?:${NAMES})\\b`, 'g');
/** A comparison within a template of SQL. */
const RAW = new RegExp(
  `(?:(?:\\w+\\.)?"?(?:${COLUMNS})"?|\\$\\{[\\w.]+\\.(?:${NAMES})\\}) = (?:\\$\\{[^{}]*\\}|\\?\\d*|[\\w."]+)`,
  'g',
);
interface Mutation {
  path: string;
  line: number;
  /** Path, condition, and its number if the file has several of this text. */
  name: string;
  from: number;
  to: number;
  condition: string;
  /** Whether it is a call of drizzle. Otherwise it is text of a template of SQL. */
  isCall: boolean;
}

/** The end of a call that opens at `from`, strings and templates passed over as far as their brackets match. */
function endOfCall(text: string, from: number): number {
  let depth = 0;
  for (let at = text.indexOf('(', from); at < text.length; at += 1) {
    if (text[at] === '(') depth += 1;
    if (text[at] === ')') depth -= 1;
    if (depth === 0) return at + 1;
  }
  return text.length;
}

function mutationsOf(path: string, text: string): Mutation[] {
  const found = [
    ...[...text.matchAll(CALL)].map(({ index }) => ({
      from: index,
      to: endOfCall(text, index),
      isCall: true,
    })),
    ...[...text.matchAll(RAW)].map(({ index, 0: match }) => ({
      from: index,
      to: index + match.length,
      isCall: false,
    })),
  ];
  return found
    .map(({ from, to, isCall }) => ({
      path,
      from,
      to,
      isCall,
      line: text.slice(0, from).split('\n').length,
      condition: text.slice(from, to).replaceAll(/\s+/g, ' '),
    }))
    .filter(({ from }) => !/^\s*(?:\/\/|\*)/.test(text.slice(text.lastIndexOf('\n', from) + 1)))
    .toSorted((one, two) => one.from - two.from)
    .map((mutation, at, all) => {
      const same = all.slice(0, at).filter(({ condition }) => condition === mutation.condition).length;
      return { ...mutation, name: `${path}: ${mutation.condition}${same > 0 ? ` #${same + 1}` : ''}` };
    });
}

const SWITCH = 'edge/removed-condition.ts';
const EVALUATED = 'evaluated condition: ';

/** Decides which condition is true instead, in Node.js and in workerd. */
const SWITCH_SOURCE = `
import { sql } from 'drizzle-orm';
const noted = (globalThis.notedConditions ??= new Set());
export const always = sql\`true\`;
export const sqlOf = sql;
export function isRemoved(name) {
  if (globalThis.notesConditions && !noted.has(name)) {
    noted.add(name);
    console.log('${EVALUATED}' + name);
  }
  return name === globalThis.removedCondition;
}
`;

/**
 * Evaluates most conditions, in Node.js, and each of its tests can be repeated: each is, without each of its conditions.
 */
const REPEATED = 'test/edge/tenancy/other-tenants.worker.test.ts';

/** Of each test file: says what is removed in it, notes what it evaluates, and skips what follows a failure. */
const SET_UP = `
import { appendFileSync, readFileSync } from "node:fs";
import { relative } from "node:path";
import { afterEach, beforeEach, onTestFailed, TestRunner } from 'vitest';
const file = relative(process.cwd(), globalThis.__vitest_worker__.filepath);
const removed = JSON.parse(readFileSync('removed.json', 'utf8'))[file];
globalThis.removedCondition = removed;
globalThis.notesConditions = removed === undefined;
const print = console.log;
console.log = (...values) => {
  const [text] = values;
  if (typeof text !== 'string' || !text.startsWith('${EVALUATED}')) return print(...values);
  appendFileSync('evaluated.txt', file + '\\t' + text.slice(${EVALUATED.length}) + '\\n');
};
let hasFailed = false;
beforeEach((context) => {
  if (hasFailed) context.skip();
  onTestFailed(() => { hasFailed = true; });
});
if (file === '${REPEATED}' && removed === undefined) {
  const killed = new Set();
  beforeEach(() => globalThis.notedConditions?.clear());
  afterEach(async ({ task }) => {
    globalThis.notesConditions = false;
    for (const name of globalThis.notedConditions ?? []) {
      if (killed.has(name)) continue;
      globalThis.removedCondition = name;
      try {
        await TestRunner.getTestFn(task)(task.context);
      } catch {
        killed.add(name);
        appendFileSync('killed.txt', name + '\\n');
      }
      globalThis.removedCondition = undefined;
    }
    globalThis.notesConditions = true;
  });
}
`;

const CONFIGURATION = `
import { defineConfig } from 'vitest/config';
export default defineConfig({
  test: {
    include: ['test/edge/**/*.worker.test.ts'],
    globalSetup: 'test/support/run-folder.ts',
    setupFiles: 'removed-setup.mjs',
    maxWorkers: 3,
    testTimeout: 120_000,
    hookTimeout: 600_000,
    reporters: 'json',
    outputFile: 'outcomes.json',
  },
});
`;

/** Where the tests start workerd. */
const WORKER = 'test/support/worker/worker.ts';
const SCRIPT = 'modules: true,\n      script,';
const SWITCHED_SCRIPT = `modules: true,
      script: \`globalThis.removedCondition = \${JSON.stringify(globalThis.removedCondition)};
globalThis.notesConditions = \${globalThis.notesConditions};
\${script}\`,`;

/** The text with a switch at each condition. */
function withSwitches(path: string, text: string): string {
  const insertions = mutationsOf(path, text).flatMap(({ name, from, to, isCall }) => {
    const test = `isRemoved(${JSON.stringify(name)}) ? always`;
    return isCall
      ? [
          { at: from, added: `(${test} : ` },
          { at: to, added: ')' },
        ]
      : [
          { at: from, added: `\${${test} : sqlOf\`` },
          { at: to, added: '`}' },
        ];
  });
  if (insertions.length === 0) return text;
  const changed = insertions
    .toSorted((one, two) => two.at - one.at)
    .reduce((so, { at, added }) => so.slice(0, at) + added + so.slice(at), text);
  const module = relative(dirname(path), SWITCH);
  return `import { always, isRemoved, sqlOf } from '${module.startsWith('.') ? module : `./${module}`}';\n${changed}`;
}

const sources = filesOf('edge', ROOT);
const { values: OPTIONS } = parseArgs({
  options: {
    only: { type: 'string', default: 'edge' },
    tests: { type: 'string', default: 'test' },
    seconds: { type: 'string', default: '36000' },
    list: { type: 'boolean', default: false },
  },
});
const tests = globSync('test/edge/**/*.worker.test.ts', { cwd: ROOT })
  .filter((path) => path.startsWith(OPTIONS.tests))
  .toSorted();

/** What one test file evaluates. */
interface Coverage {
  /** Of its text. */
  digest: string;
  seconds: number;
  names: string[];
}

interface Kept {
  coverage: Record<string, Coverage>;
  /** By the name of a condition, what holds for these texts of its file and of the test file that failed. */
  killed: Record<string, { source: string; test: string; digest: string }>;
}

const KEPT = join(ROOT, '.dev/tenant-mutations.json');

function readKept(): Kept {
  try {
    return JSON.parse(readFileSync(KEPT, 'utf8'));
  } catch {
    return { coverage: {}, killed: {} };
  }
}

const keep = (kept: Kept) => writeFileSync(KEPT, `${JSON.stringify(kept, null, 2)}\n`);

const digestOf = (path: string) =>
  createHash('sha256')
    .update(readFileSync(join(ROOT, path)))
    .digest('base64url');

/** Test files of one run. */
const AT_ONCE = 24;

interface Report {
  testResults: {
    name: string;
    status: 'passed' | 'failed';
    startTime: number;
    endTime: number;
    /** Of a failure outside of its tests. */
    message: string;
    assertionResults: { fullName: string; failureMessages: string[] }[];
  }[];
}

interface FileOutcome {
  hasPassed: boolean;
  seconds: number;
  /** Why it has failed. */
  reasons: string[];
}

/** @param removed the condition that is removed for a test file; undefined: it notes what it evaluates */
async function runTests(
  folder: string,
  removed: ReadonlyMap<string, string | undefined>,
): Promise<Map<string, FileOutcome>> {
  writeFileSync(join(folder, 'removed.json'), JSON.stringify(Object.fromEntries(removed)));
  rmSync(join(folder, 'outcomes.json'), { force: true });
  const words = ['node_modules/vitest/vitest.mjs', 'run', '--config', 'removed.config.ts', ...removed.keys()];
  const run = spawn(join(ROOT, 'node_modules/.bin/node'), words, { cwd: folder, stdio: 'ignore' });
  await once(run, 'exit');
  const { testResults }: Report = JSON.parse(readFileSync(join(folder, 'outcomes.json'), 'utf8'));
  return new Map(
    testResults.map(({ name, status, startTime, endTime, message, assertionResults }) => [
      relative(folder, name),
      {
        hasPassed: status === 'passed',
        seconds: Math.round((endTime - startTime) / 1000),
        reasons: [
          message,
          ...assertionResults.flatMap(({ fullName, failureMessages: [text] }) =>
            text === undefined ? [] : `${fullName}: ${text.slice(0, 1000)}`,
          ),
        ].filter(Boolean),
      },
    ]),
  );
}

/** Runs the test files that are not noted yet, and keeps what they evaluate. @throws if one fails without a change */
async function noteCoverage(folder: string, kept: Kept, isLate: () => boolean): Promise<void> {
  const left = tests.filter((test) => kept.coverage[test]?.digest !== digestOf(test) && test !== REPEATED);
  const failed: string[] = [];
  const isStale =
    kept.coverage[REPEATED]?.digest !== digestOf(REPEATED) || REPEATED.startsWith(OPTIONS.tests);
  for (const files of [...(isStale ? [[REPEATED]] : []), ...chunked(left, AT_ONCE)]) {
    if (isLate()) throw new Error('no time is left to try conditions: run it again, it continues');
    writeFileSync(join(folder, 'evaluated.txt'), '');
    const outcomes = await runTests(folder, new Map(files.map((test) => [test, undefined])));
    const lines = readFileSync(join(folder, 'evaluated.txt'), 'utf8').split('\n');
    const evaluated = Map.groupBy(
      lines.map((line) => line.split('\t')),
      ([test]) => test,
    );
    for (const [test, { hasPassed, seconds, reasons }] of outcomes) {
      if (!hasPassed) failed.push(`${test} fails without a change: ${reasons.join('\n')}`);
      if (!hasPassed) continue;
      const names = (evaluated.get(test) ?? []).flatMap(([, name]) => name ?? []);
      kept.coverage[test] = {
        digest: digestOf(test),
        seconds,
        names: [...new Set(names)].toSorted(),
      };
    }
    if (files.includes(REPEATED)) noteRepeated(folder, kept);
    keep(kept);
    console.log(`${files.length} of ${left.length} test files noted`);
  }
  if (failed.length > 0) throw new Error(failed.join('\n'));
}

/** Keeps the conditions without which a repeated test has failed. */
function noteRepeated(folder: string, kept: Kept): void {
  for (const name of readFileSync(join(folder, 'killed.txt'), 'utf8').trim().split('\n')) {
    const [path = ''] = name.split(': ');
    kept.killed[name] = { source: digestOf(path), test: REPEATED, digest: digestOf(REPEATED) };
  }
}

const chunked = <T>(all: readonly T[], size: number): T[][] =>
  Array.from({ length: Math.ceil(all.length / size) }, (_, at) => all.slice(at * size, (at + 1) * size));

/** Tests that evaluate the condition: those of the same name and of the same folder come first, then the quickest. */
function nearestTests({ path, name }: Mutation, { coverage }: Kept): string[] {
  const roomOf = (file: string) => file.split('/').at(-2);
  const distance = (test: string) =>
    basename(test).startsWith(`${basename(path, '.ts')}.`) ? 0 : roomOf(test) === roomOf(path) ? 1 : 2;
  return tests
    .filter((test) => coverage[test]?.names.includes(name))
    .toSorted(
      (one, other) =>
        distance(one) - distance(other) || (coverage[one]?.seconds ?? 0) - (coverage[other]?.seconds ?? 0),
    );
}

/** So many files are tried for a condition one after another, because most need no more, and then several in one run. */
const NEAREST = 3;
const OTHERS = 12;

interface Open {
  mutation: Mutation;
  left: string[];
  tried: number;
}

/** The next run: each test file has one condition. */
function nextRun(open: readonly Open[]): Map<string, Open> {
  const chosen = new Map<string, Open>();
  for (const one of open) {
    const free = one.left.filter((test) => !chosen.has(test));
    for (const test of free.slice(0, one.tried < NEAREST ? 1 : OTHERS))
      if (chosen.size < AT_ONCE) chosen.set(test, one);
  }
  return chosen;
}

function copyWithSwitches(folder: string): void {
  const skipped = ['.git', '.dev', 'node_modules', 'dist'];
  cpSync(ROOT, folder, { recursive: true, filter: (source) => !skipped.includes(basename(source)) });
  mkdirSync(join(folder, '.dev'));
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  for (const { path, text } of sources) writeFileSync(join(folder, path), withSwitches(path, text));
  writeFileSync(join(folder, SWITCH), SWITCH_SOURCE);
  writeFileSync(join(folder, 'removed-setup.mjs'), SET_UP);
  writeFileSync(join(folder, 'removed.config.ts'), CONFIGURATION);
  const worker = readFileSync(join(ROOT, WORKER), 'utf8');
  if (!worker.includes(SCRIPT)) throw new Error(`${WORKER} does not start workerd with ${SCRIPT}`);
  writeFileSync(
    join(folder, WORKER),
    worker.replace(SCRIPT, () => SWITCHED_SCRIPT),
  );
}

async function main() {
  const mutations = sources
    .filter(({ path }) => path.startsWith(OPTIONS.only))
    .flatMap(({ path, text }) => mutationsOf(path, text));
  if (OPTIONS.list) {
    for (const { line, name } of mutations) console.log(`${name} (line ${line})`);
    console.log(`${mutations.length} conditions`);
    return;
  }
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-mutations-'));
  const deadline = Date.now() + Number(OPTIONS.seconds) * 1000;
  const isLate = () => Date.now() > deadline;
  const kept = readKept();
  const isKilled = ({ path, name }: Mutation) => {
    const found = kept.killed[name];
    return (
      found?.source === digestOf(path) &&
      existsSync(join(ROOT, found.test)) &&
      found.digest === digestOf(found.test)
    );
  };
  const survivors: string[] = [];
  let open: Open[] = [];
  try {
    copyWithSwitches(folder);
    await noteCoverage(folder, kept, isLate);
    open = mutations
      .filter((mutation) => EQUIVALENT[mutation.name] === undefined && !isKilled(mutation))
      .map((mutation) => ({ mutation, left: nearestTests(mutation, kept), tried: 0 }));
    while (open.length > 0 && !isLate()) {
      const chosen = nextRun(open);
      const removed = new Map([...chosen].map(([test, { mutation }]) => [test, mutation.name]));
      const outcomes = chosen.size === 0 ? new Map() : await runTests(folder, removed);
      for (const [test, one] of chosen) {
        const { path, name, line } = one.mutation;
        one.left = one.left.filter((each) => each !== test);
        one.tried += 1;
        if (outcomes.get(test)?.hasPassed !== false) continue;
        kept.killed[name] = { source: digestOf(path), test, digest: digestOf(test) };
        console.log(`killed ${name} (line ${line}) by ${test}`);
      }
      keep(kept);
      open = open.filter(({ mutation }) => !isKilled(mutation));
      for (const { mutation, tried } of open.filter(({ left }) => left.length === 0)) {
        survivors.push(mutation.name);
        console.log(`SURVIVED ${mutation.name} (line ${mutation.line}), ${tried} test files evaluate it`);
      }
      open = open.filter(({ left }) => left.length > 0);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
  const equivalent = mutations.filter(({ name }) => EQUIVALENT[name] !== undefined);
  for (const { name } of equivalent) console.log(`equivalent ${name}: ${EQUIVALENT[name]}`);
  console.log(
    `${mutations.filter(isKilled).length} killed, ${equivalent.length} equivalent, ${survivors.length} survived, ` +
      `${open.length} not tried to the end, of ${mutations.length}`,
  );
  process.exitCode = survivors.length + open.length === 0 ? 0 : 1;
}

if (import.meta.main) await main();
