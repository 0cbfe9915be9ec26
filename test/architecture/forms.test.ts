import { basename } from 'node:path';
import { describe, expect, test } from 'vitest';
import { filesOf, importsOf, type SourceFile } from './rooms.ts';

/**
 * Forms that hide what they hold: a literal that is spread into another, a list that is only taken apart again,
 * and two imports of one module. The formatter keeps them on one line, where their fields are hard to read.
 */

const FOLDERS = [
  'action',
  'agent',
  'cli',
  'client',
  'console',
  'dev',
  'edge',
  'mcp',
  'operator',
  'shared',
  'test',
  'vitest',
];
const GENERATED = ['client/api.ts', 'console/app/route-tree.gen.ts'];
/** These write source files, or the forms themselves, as text. */
const WRITERS = ['test/architecture/forms.test.ts', 'test/vitest/fixture.e2e.test.ts'];

const files = FOLDERS.flatMap((folder) => filesOf(folder)).filter(
  ({ path }) => !GENERATED.includes(path) && !WRITERS.includes(path),
);
const names = new Set([
  ...files.map(({ path }) => basename(path)),
  ...GENERATED.map((path) => basename(path)),
]);
const paths = [...files.map(({ path }) => path), ...GENERATED];

const LITERAL_SPREAD = /\.\.\.\{/g;
/** `const [a, b] = [x, y];`: the list ends the statement, so nothing has mapped or sorted it. */
const LIST_PATTERN = /\b(?:const|let) \[[^=\n]*\] = (?=\[)/g;
const IMPORT_STATEMENT = /^import\b[^;]*;$/gm;
/** A page fills its fields after it has read something, so a test waits for the value. */
const FIELD_READ_ONCE = /^ *expect\(await [^\n]*\.(?:inputValue|isEnabled)\([^\n]*;$/gm;
const COMMENT = /\/\*\*?[\s\S]*?\*\/|(?:^|\s)\/\/.*$/gm;
const FILE_NAME = /(?<![\w/.<*-])(?:\.\/)?((?:[\w-][\w.-]*\/)*[\w-][\w.-]*\.tsx?)\b/g;

/** The text of the bracketed list at `start`, which ends with its closing bracket. */
function listAt(text: string, start: number): string {
  let depth = 0;
  for (let at = start; at < text.length; at += 1) {
    if (text[at] === '[') depth += 1;
    if (text[at] === ']') depth -= 1;
    if (depth === 0) return text.slice(start, at + 1);
  }
  return text.slice(start);
}

const isTakenApart = (text: string, at: number, pattern: string): boolean => {
  const start = at + pattern.length;
  const list = listAt(text, start);
  return text[start + list.length] === ';' && !list.startsWith('[...');
};

/** Each form of a file that is refused, as `<path>: <form>`. */
function formsOf({ path, text }: SourceFile): string[] {
  const spreads = [...text.matchAll(LITERAL_SPREAD)].map(() => 'spreads a literal');
  const lists = [...text.matchAll(LIST_PATTERN)]
    .filter(({ index, 0: pattern }) => isTakenApart(text, index, pattern))
    .map(() => 'takes a literal list apart');
  const statements = [...text.matchAll(IMPORT_STATEMENT)];
  const modules = statements
    .filter(([statement]) => !/\* as /.test(statement))
    .map(([statement]) => /'([^']+)';$/.exec(statement)?.[1] ?? statement);
  const twice = modules.filter((name, n) => modules.indexOf(name) !== n);
  const gaps = statements.filter(({ index, 0: statement }) =>
    text.slice(index + statement.length).startsWith('\n\nimport '),
  );
  return [
    ...spreads,
    ...lists,
    ...twice.map((name) => `imports ${name} twice`),
    ...gaps.map(() => 'has a blank line between imports'),
    ...[...text.matchAll(FIELD_READ_ONCE)].map(() => 'reads a field of a page once'),
  ].map((form) => `${path}: ${form}`);
}

const isFile = (name: string) =>
  name.includes('/') ? paths.some((path) => path === name || path.endsWith(`/${name}`)) : names.has(name);

/** The files that comments name and that do not exist. */
const missingOf = ({ path, text }: SourceFile): string[] =>
  [...text.matchAll(COMMENT)].flatMap(([comment]) =>
    [...comment.matchAll(FILE_NAME)]
      .map(([, name = '']) => name)
      .filter((name) => !isFile(name))
      .map((name) => `${path}: ${name}`),
  );

const source = (text: string): SourceFile => ({
  path: 'edge/a.ts',
  text,
  imports: importsOf('edge/a.ts', text),
});

describe('the search', () => {
  test.each<[string, string, string[]]>([
    ['a spread literal', 'const a = {\n  ...{ b, c },\n};', ['edge/a.ts: spreads a literal']],
    ['a spread of a condition', 'const a = { ...(b && { c }) };', []],
    ['a list', 'const [a, b] = [c(d[0]), e];', ['edge/a.ts: takes a literal list apart']],
    ['a list over lines', 'const [a, b] = [\n  c,\n  d,\n];', ['edge/a.ts: takes a literal list apart']],
    ['a list that is mapped', 'const [a, b] = [c, d].map(e);', []],
    ['a list that is made of others', 'const [first] = [...a, ...b];', []],
    [
      'two imports',
      "import type { A } from './b.ts';\nimport { c } from './b.ts';",
      ['edge/a.ts: imports ./b.ts twice'],
    ],
    ['a namespace beside names', "import * as b from './b.ts';\nimport { c } from './b.ts';", []],
    [
      'a blank line',
      "import { a } from './a.ts';\n\nimport { b } from './b.ts';",
      ['edge/a.ts: has a blank line between imports'],
    ],
    ['a field', '  expect(await a.inputValue()).toBe(b);', ['edge/a.ts: reads a field of a page once']],
    ['a field that is waited for', 'await eventually(async () => expect(await a.inputValue()).toBe(b));', []],
    ['a blank line after the imports', "import { a } from './a.ts';\n\nexport const b = a;", []],
  ])('finds %s', (_, text, found) => {
    expect(formsOf(source(text))).toEqual(found);
  });

  test('finds missing files in comments of both kinds, and none in code', () => {
    const text =
      "/**\n * See `forms.test.ts` and `edge/gone.ts`.\n */\nconst a = './absent.ts'; // as in left.tsx\n// edge/app.ts";
    expect(missingOf(source(text.replace('forms.test.ts', 'imports.test.ts')))).toEqual([
      'edge/a.ts: edge/gone.ts',
      'edge/a.ts: left.tsx',
    ]);
  });

  test('reads the files', () => {
    expect(files.length).toBeGreaterThan(1_000);
  });
});

test('no file hides literals or splits its imports', () => {
  expect(files.flatMap(formsOf)).toEqual([]);
});

test('every file that a comment names exists', () => {
  expect(files.flatMap(missingOf)).toEqual([]);
});
