import { existsSync, globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';

const ROOT = join(import.meta.dirname, '../..');
const DOCUMENTS = globSync(['*.md', 'docs/**/*.md'], { cwd: ROOT }).sort();
/** Benchmark pages describe the code of their day, so their paths are not checked. */
const DATED = /^docs\/benchmarks\//;

const LINK = /\]\(([^)\s]+)\)/g;
/**
 * `edge/routes/branches.ts`, `test/simulation`: anything in backticks that starts with a folder of the
 * sources.
 */
const PATH =
  /`((?:action|agent|cli|client|console|dev|docs|edge|mcp|operator|python|shared|test|vitest)\/[\w./-]*)`/g;
const HEADING = /^#{1,6} +(.+)$/gm;
const FENCED = /^```.*?^```/gms;

const read = (document: string) => readFileSync(join(ROOT, document), 'utf8');
const linksOf = (text: string) =>
  [...text.replaceAll(FENCED, '').matchAll(LINK)].map(([, link = '']) => link);
const pathsOf = (text: string) => [...text.matchAll(PATH)].map(([, path = '']) => path);

/** The anchor that GitHub gives a heading. */
const anchorOf = (heading: string) =>
  heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(' ', '-');

const anchorsOf = (document: string) =>
  [...read(document).replaceAll(FENCED, '').matchAll(HEADING)].map(([, heading = '']) => anchorOf(heading));

/** Whether a relative link leads to a file or folder, and its fragment to a heading. */
function leadsSomewhere(document: string, link: string): boolean {
  const [path = '', fragment] = link.split('#');
  const target = path === '' ? document : join(dirname(document), path);
  if (!existsSync(join(ROOT, target))) return false;
  return fragment === undefined || anchorsOf(target).includes(fragment);
}

/** The build makes them, so a fresh clone has none. */
const BUILT = /\/dist(?:\/|$)/;

/** A file, a folder, or a file without its suffixes. */
const isPath = (path: string) =>
  BUILT.test(path) || existsSync(join(ROOT, path)) || globSync(`${path}.*`, { cwd: ROOT }).length > 0;

describe('the search', () => {
  test('finds the documents', () => {
    expect(DOCUMENTS).toContain('README.md');
    expect(DOCUMENTS).toContain('docs/specification.md');
  });

  test('finds links and paths, and detects wrong ones', () => {
    const text =
      'See [one](docs/storage.md#d1), `edge/app.ts`, `test/end-to-end/`, `cli/main.ts` and `npm test`.\n```\n[x](y)\n```';
    expect(linksOf(text)).toEqual(['docs/storage.md#d1']);
    expect(pathsOf(text)).toEqual(['edge/app.ts', 'test/end-to-end/', 'cli/main.ts']);
    expect(leadsSomewhere('README.md', 'docs/specification.md#23-lifespans')).toBe(true);
    expect(leadsSomewhere('README.md', 'docs/specification.md#no-such-section')).toBe(false);
    expect(leadsSomewhere('README.md', 'docs/no-such-page.md')).toBe(false);
    expect(isPath('test/architecture/documents')).toBe(true);
    expect(isPath('edge/no-such-file.ts')).toBe(false);
    expect(isPath('action/dist')).toBe(true);
    expect(isPath('action/distant.ts')).toBe(false);
  });
});

/** The pages for users, by the list of README. */
const USER_PAGES = [
  ...new Set(
    linksOf(/\*\*Use it\*\*(.*?)\*\*Run it\*\*/s.exec(read('README.md'))?.[1] ?? '').filter(
      (link) => link !== 'docs/glossary.md',
    ),
  ),
];

test.each(USER_PAGES)('%s links the glossary', (page) => {
  expect(linksOf(read(page))).toContain('glossary.md');
});

test.each(DOCUMENTS)('%s has only relative links that lead to a file and a heading', (document) => {
  const relative = linksOf(read(document)).filter((link) => !/^[a-z]+:/.test(link));
  expect(relative.filter((link) => !leadsSomewhere(document, link))).toEqual([]);
});

test.each(DOCUMENTS.filter((document) => !DATED.test(document)))(
  '%s names only paths that exist',
  (document) => {
    expect(pathsOf(read(document)).filter((path) => !isPath(path))).toEqual([]);
  },
);

/** Rows of "Where is it?": a question, a file, and what is there. */
const WHERE = /^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$/gm;

/** Of all notes: more would not be read. */
const DECISION_WORDS_MAX = 32_000;

test('the decision notes stay short enough to be read', () => {
  const notes = DOCUMENTS.filter((document) => document.startsWith('docs/decisions/'));
  const words = notes.flatMap((note) => read(note).split(/\s+/).filter(Boolean));
  expect(words.length).toBeLessThanOrEqual(DECISION_WORDS_MAX);
});

test('what a newcomer looks for is where the architecture says', () => {
  const section = /^## Where is it\?\n([\s\S]*?)^## /m.exec(read('docs/architecture.md'))?.[1] ?? '';
  const rows = [...section.matchAll(WHERE)].map(([, file = '', name = '']) => ({ file, name }));
  expect(rows.length).toBeGreaterThanOrEqual(25);
  expect(
    rows.filter(({ file, name }) => !existsSync(join(ROOT, file)) || !read(file).includes(name)),
  ).toEqual([]);
});
