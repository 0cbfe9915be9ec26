import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { beforeAll, expect, test } from 'vitest';
import { PREPARED } from '../support/prepared.ts';

/** Kilobytes of scripts and styles, compressed. Fonts come on top: 53 KB, once. */
const SHELL_MAX = 131;
const PAGE_MAX = 204;
const ALL_MAX = 361;

interface Chunk {
  file: string;
  css?: string[];
  imports?: string[];
}

let folder: string;
let manifest: Record<string, Chunk>;

beforeAll(async () => {
  folder = await PREPARED.console();
  manifest = JSON.parse(readFileSync(join(folder, '.vite/manifest.json'), 'utf8'));
});

/** The files that a page loads, with those of everything that it imports. */
function filesOf(names: readonly string[], seen = new Set<string>()): Set<string> {
  const files = new Set<string>();
  for (const name of names) {
    const chunk = manifest[name];
    if (!chunk || seen.has(name)) continue;
    seen.add(name);
    for (const file of [chunk.file, ...(chunk.css ?? []), ...filesOf(chunk.imports ?? [], seen)])
      files.add(file);
  }
  return files;
}

const kilobytesOf = (files: Iterable<string>) =>
  [...files]
    .filter((file) => /\.(?:js|css)$/.test(file))
    .reduce((sum, file) => sum + gzipSync(readFileSync(join(folder, file))).length / 1000, 0);

const SHELL = 'index.html';
const BRANCHES = 'pages/branches/branches-page.tsx?tsr-split=component';
/** Loaded by the page of SQL alone. */
const EDITOR = /sql/;

test('the shell is small', () => {
  expect(kilobytesOf(filesOf([SHELL]))).toBeLessThanOrEqual(SHELL_MAX);
});

test('each page is small, the editor of SQL apart', () => {
  const pages = Object.keys(manifest).filter((name) => name.startsWith('pages/') && !EDITOR.test(name));
  expect(pages).toContain(BRANCHES);
  expect(pages.filter((page) => kilobytesOf(filesOf([SHELL, page])) > PAGE_MAX)).toEqual([]);
});

test('all pages together are small, the editor of SQL apart', () => {
  const names = Object.keys(manifest).filter((name) => !EDITOR.test(name));
  expect(names.length).toBeGreaterThan(10);
  expect(kilobytesOf(filesOf(names))).toBeLessThanOrEqual(ALL_MAX);
});
