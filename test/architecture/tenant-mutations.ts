import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  cpSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { parseArgs } from 'node:util';
import { filesOf, importsOf } from './rooms.ts';

/**
 * Removes each condition of the gateway's queries about a tenant, a provider or a project, one after another in a copy of the
 * repository, and runs the nearest tests: a condition without which they pass is one that nobody would miss.
 *
 *     node test/architecture/tenant-mutations.ts [--only edge/people] [--from 10] [--list] [--seconds 600]
 *
 * Survivors fail the run, unless `tenant-mutations.json` says why the condition changes nothing.
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
/** Milliseconds for the tests of one condition. */
const TESTED_WITHIN = 300_000;

interface Mutation {
  path: string;
  line: number;
  /** Path, condition, and its number if the file has several of this text. */
  name: string;
  from: number;
  to: number;
  condition: string;
  /** What replaces it: true, as SQL. */
  replacement: string;
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

const TRUE = 'removedCondition`true`';

function mutationsOf(path: string, text: string): Mutation[] {
  const found = [
    ...[...text.matchAll(CALL)].map(({ index }) => ({
      from: index,
      to: endOfCall(text, index),
      replacement: TRUE,
    })),
    ...[...text.matchAll(RAW)].map(({ index, 0: match }) => ({
      from: index,
      to: index + match.length,
      replacement: 'true',
    })),
  ];
  return found
    .map(({ from, to, replacement }) => ({
      path,
      from,
      to,
      replacement,
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

const apply = (text: string, { from, to, replacement }: Mutation): string =>
  `${text.slice(0, from)}${replacement}${text.slice(to)}${replacement === TRUE ? "\nimport { sql as removedCondition } from 'drizzle-orm';\n" : ''}`;

const sources = filesOf('edge', ROOT);
const tests = globSync('test/edge/**/*.worker.test.ts', { cwd: ROOT }).toSorted();

/** Tests in the order in which they are tried: of the same name, of the same folder, of the folders that import the file. */
function nearestTests(path: string): string[][] {
  const name = basename(path, '.ts');
  const roomOf = (file: string) => file.split('/')[1] ?? '';
  const users = sources
    .filter(({ path: file, text }) => importsOf(file, text).includes(path))
    .map(({ path: file }) => roomOf(file));
  const own = tests.filter((test) => basename(test).startsWith(`${name}.`));
  const ofRoom = tests.filter((test) => roomOf(test.slice(5)) === roomOf(path) && !own.includes(test));
  const ofUsers = tests.filter(
    (test) => users.includes(roomOf(test.slice(5))) && !own.includes(test) && !ofRoom.includes(test),
  );
  return [own, ofRoom, ofUsers].filter((some) => some.length > 0);
}

type Outcome = 'passed' | 'failed' | 'late';

async function runTests(folder: string, files: readonly string[]): Promise<Outcome> {
  const words = ['node_modules/vitest/vitest.mjs', 'run', '--project', 'main', '--bail', '1', ...files];
  const node = join(ROOT, 'node_modules/.bin/node');
  const run = spawn(node, words, { cwd: folder, stdio: 'ignore', detached: true });
  let isLate = false;
  const late = setTimeout(() => {
    isLate = true;
    // With the workers that run the files.
    if (run.pid) process.kill(-run.pid, 'SIGKILL');
  }, TESTED_WITHIN);
  const [code] = await once(run, 'exit');
  clearTimeout(late);
  return isLate ? 'late' : code === 0 ? 'passed' : 'failed';
}

/** What becomes of a condition: `late` says nothing, so it is none that the tests would miss. */
async function outcomeOf(folder: string, mutation: Mutation, green: Set<string>): Promise<Outcome> {
  const file = join(folder, mutation.path);
  const text = readFileSync(file, 'utf8');
  for (const files of nearestTests(mutation.path)) {
    const key = files.join();
    // A failure counts only for tests that pass with the condition.
    if (!green.has(key)) {
      const outcome = await runTests(folder, files);
      if (outcome !== 'passed') throw new Error(`${outcome} without a change: ${files.join(' ')}`);
      green.add(key);
    }
    writeFileSync(file, apply(text, mutation));
    const outcome = await runTests(folder, files);
    writeFileSync(file, text);
    if (outcome !== 'passed') return outcome;
  }
  return 'passed';
}

const SAID: Record<Outcome, string> = { passed: 'SURVIVED', failed: 'killed', late: 'TIMED OUT' };

async function main() {
  const { values } = parseArgs({
    options: {
      only: { type: 'string', default: 'edge' },
      from: { type: 'string', default: '0' },
      seconds: { type: 'string', default: '36000' },
      list: { type: 'boolean', default: false },
    },
  });
  const mutations = sources
    .filter(({ path }) => path.startsWith(values.only))
    .flatMap(({ path, text }) => mutationsOf(path, text))
    .slice(Number(values.from));
  if (values.list) {
    for (const { line, name } of mutations) console.log(`${name} (line ${line})`);
    console.log(`${mutations.length} conditions`);
    return;
  }
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-mutations-'));
  const deadline = Date.now() + Number(values.seconds) * 1000;
  const survivors: string[] = [];
  const green = new Set<string>();
  let killed = 0;
  try {
    const skipped = ['.git', '.dev', 'node_modules', 'dist'];
    cpSync(ROOT, folder, { recursive: true, filter: (source) => !skipped.includes(basename(source)) });
    mkdirSync(join(folder, '.dev'));
    symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
    for (const mutation of mutations) {
      const { line, name } = mutation;
      if (Date.now() > deadline) break;
      const reason = EQUIVALENT[name];
      if (reason !== undefined) {
        console.log(`equivalent ${name} (line ${line}): ${reason}`);
        continue;
      }
      const outcome = await outcomeOf(folder, mutation, green);
      if (outcome === 'failed') killed += 1;
      else survivors.push(name);
      console.log(`${SAID[outcome]} ${name} (line ${line})`);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
  console.log(`${killed} killed, ${survivors.length} not, of ${mutations.length}`);
  process.exitCode = survivors.length === 0 ? 0 : 1;
}

if (import.meta.main) await main();
