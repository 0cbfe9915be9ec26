import { execFileSync } from 'node:child_process';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { creationFiles, deepestChain, fileGraph, filesOf } from './rooms.ts';

/**
 * The figures by which the protocols and their rooms are compared: `node test/architecture/figures.ts [FOLDER]` prints
 * those of this working tree, or of another one.
 */

const ROOT = join(import.meta.dirname, '../..');
const GENERATED = ['client/api.ts', 'console/app/route-tree.gen.ts'];

const linesOf = (text: string) => text.split('\n').length - 1;
const sum = (numbers: number[]) => numbers.reduce((total, one) => total + one, 0);

function trackedLines(root: string): number {
  const files = execFileSync('git', ['ls-files', '-z'], { cwd: root, encoding: 'utf8' }).split('\0');
  const texts = files.filter((file) => file !== '' && !/\.(?:png|ico|woff2?)$/.test(file));
  return sum(globSync(texts, { cwd: root }).map((file) => linesOf(readFileSync(join(root, file), 'utf8'))));
}

const linesIn = (folder: string, root: string) =>
  sum(
    filesOf(folder, root)
      .filter(({ path }) => !GENERATED.includes(path))
      .map(({ text }) => linesOf(text)),
  );

/** The rooms of the gateway that the files of the protocol import, its own left out. */
function roomsLeft(root: string, path: RegExp): number {
  const own = filesOf('edge', root).filter((file) => path.test(file.path));
  const rooms = own.flatMap(({ path: from, imports }) =>
    imports
      .filter((name) => name.startsWith('edge/') && name.split('/').length > 2)
      .map((name) => name.split('/')[1] ?? '')
      .filter((room) => room !== from.split('/')[1]),
  );
  return new Set(rooms).size;
}

/** Cells of the tables that tests of states have by hand: rows times columns of each table. */
function testedCells(root: string): number {
  const tests = globSync('test/**/states*.test.ts', { cwd: root });
  const tables = tests.flatMap((file) =>
    [...readFileSync(join(root, file), 'utf8').matchAll(/= `\n([^`]+)`;/g)].map(([, table = '']) => table),
  );
  return sum(
    tables.map((table) => {
      const [head = '', ...rows] = table.trim().split('\n');
      return head.trim().split(/\s+/).length * rows.length;
    }),
  );
}

const LITERAL_SPREAD = /\.\.\.\{/g;
const IMPORTED = /^import\b(?![^;]*\* as )[^;]*from '([^']+)';$/gm;

function forms(root: string) {
  const files = [
    'action',
    'agent',
    'cli',
    'console',
    'dev',
    'edge',
    'mcp',
    'operator',
    'shared',
    'test',
  ].flatMap((folder) => filesOf(folder, root));
  const own = files.filter(
    ({ path }) => !path.startsWith('test/architecture/') && !path.startsWith('test/vitest/'),
  );
  const doubled = (text: string) => {
    const names = [...text.matchAll(IMPORTED)].map(([, name]) => name);
    return names.length - new Set(names).size;
  };
  return {
    spreads: sum(own.map(({ text }) => [...text.matchAll(LITERAL_SPREAD)].length)),
    doubled: sum(own.map(({ text }) => doubled(text))),
  };
}

const words = (root: string) =>
  sum(
    globSync('docs/decisions/**/*.md', { cwd: root }).map(
      (file) => readFileSync(join(root, file), 'utf8').split(/\s+/).filter(Boolean).length,
    ),
  );

function printFigures(root: string): void {
  const { spreads, doubled } = forms(root);
  console.table({
    'tracked lines': trackedLines(root),
    'lines of edge': linesIn('edge', root),
    'lines of agent': linesIn('agent', root),
    'lines of cli': linesIn('cli', root),
    'longest import chain in edge': deepestChain(fileGraph(filesOf('edge', root))),
    'gateway files that the walk of a branch creation names': creationFiles(root),
    'other rooms that a promotion imports': roomsLeft(
      root,
      /^edge\/(?:failover\/|reconciliation\/promote-standby)/,
    ),
    'cells of state tables with a test': testedCells(root),
    'spreads of literals': spreads,
    'modules imported twice': doubled,
    'words in docs/decisions': words(root),
  });
}

if (import.meta.main) printFigures(process.argv[2] ?? ROOT);
