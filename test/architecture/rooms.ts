import { globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/**
 * The map of the source: files, folders ("rooms") and their imports. `imports.test.ts` holds it to its rules,
 * and `node test/architecture/rooms.ts [FOLDER]` prints its size, or that of another working tree.
 */

const ROOT = join(import.meta.dirname, '../..');

export interface SourceFile {
  /** From the root of the repository. */
  path: string;
  text: string;
  /**
   * Packages by name, files of this repository by their path from its root. Imports of types are included.
   */
  imports: string[];
}

export type Graph = ReadonlyMap<string, readonly string[]>;

/** `import … from 'x'`, `import 'x'`, `export … from 'x'`, `import('x')`. */
const IMPORT =
  /^\s*(?:import|export)\b(?:[^'"`;]*?\bfrom)?\s*['"]([^'"\n]+)['"]|\bimport\(\s*['"]([^'"\n]+)['"]/gm;

export function importsOf(path: string, text: string): string[] {
  return [...text.matchAll(IMPORT)].map(([, whole, dynamic]) => {
    const name = whole ?? dynamic ?? '';
    return name.startsWith('.') ? join(dirname(path), name) : name;
  });
}

/** The TypeScript files of a folder, without builds and installed packages. */
export const filesOf = (folder: string, root = ROOT): SourceFile[] =>
  globSync(`${folder}/**/*.{ts,tsx}`, { cwd: root, exclude: ['**/dist', '**/node_modules'] }).map((path) => {
    const text = readFileSync(join(root, path), 'utf8');
    return { path, text, imports: importsOf(path, text) };
  });

/** Which file imports which. */
export const fileGraph = (sources: readonly SourceFile[]): Graph =>
  new Map(sources.map(({ path, imports }) => [path, imports.filter((name) => /\.tsx?$/.test(name))]));

/** The room of a file: its folder, or the file itself at the top of a part, where it has no neighbours. */
const roomOf = (path: string): string => (dirname(path).includes('/') ? dirname(path) : path);

/** Which room imports which, within one part (`edge`, `agent` …). */
export function roomGraph(sources: readonly SourceFile[]): Graph {
  const graph = new Map<string, Set<string>>();
  const known = new Set(sources.map(({ path }) => path));
  for (const { path, imports } of sources) {
    const room = roomOf(path);
    const others = graph.get(room) ?? new Set();
    graph.set(room, others);
    for (const name of imports) if (known.has(name) && roomOf(name) !== room) others.add(roomOf(name));
  }
  return new Map([...graph].map(([room, others]) => [room, [...others]]));
}

/**
 * The rooms that reach each other, largest knot first: the strongly connected components of more than one
 * room.
 */
export function knotsOf(graph: Graph): string[][] {
  const reach = new Map([...graph.keys()].map((room) => [room, reachable(graph, room)]));
  const reaches = (from: string, to: string) => reach.get(from)?.has(to) ?? false;
  const knots: string[][] = [];
  for (const room of graph.keys()) {
    if (!reaches(room, room) || knots.some((knot) => knot.includes(room))) continue;
    knots.push([...graph.keys()].filter((other) => reaches(room, other) && reaches(other, room)));
  }
  return knots.toSorted((a, b) => b.length - a.length);
}

function reachable(graph: Graph, start: string): Set<string> {
  const found = new Set<string>();
  const open = [start];
  for (let node = open.pop(); node !== undefined; node = open.pop()) {
    for (const next of graph.get(node) ?? []) {
      if (found.has(next)) continue;
      found.add(next);
      open.push(next);
    }
  }
  return found;
}

/** Number of files on the longest chain of imports; the graph has no cycle. */
export function deepestChain(graph: Graph): number {
  const depths = new Map<string, number>();
  const depth = (file: string): number => {
    const known = depths.get(file);
    if (known !== undefined) return known;
    const next = (graph.get(file) ?? []).filter((name) => graph.has(name));
    const value = 1 + Math.max(0, ...next.map(depth));
    depths.set(file, value);
    return value;
  };
  return Math.max(0, ...[...graph.keys()].map(depth));
}

/**
 * Results of a D1 batch that are found by counting its statements. `inOneBatch` returns none, and
 * `writeThenRead` and `guardedWrite` return the rows of their last query.
 */
const BY_POSITION = /\bresults?\.at\(-?\d+\)|\bresults?\[\d+\]/g;

export const readsByPosition = (sources: readonly SourceFile[]): string[] =>
  sources.flatMap(({ path, text }) => [...text.matchAll(BY_POSITION)].map(([found]) => `${path}: ${found}`));

/** The files of the gateway that the walk of a branch creation in `docs/architecture.md` names. */
export function creationFiles(root: string): number {
  const text = readFileSync(join(root, 'docs/architecture.md'), 'utf8');
  const walk = /^## Creating a branch\n([\s\S]*?)^## /m.exec(text)?.[1] ?? '';
  return new Set(walk.match(/\bedge\/[\w/-]+\.ts\b/g)).size;
}

function printMap(root: string): void {
  const rows = ['edge', 'agent', 'console', 'cli', 'dev', 'shared'].map((part) => {
    const sources = filesOf(part, root);
    const knots = knotsOf(roomGraph(sources));
    return {
      part,
      files: sources.length,
      lines: sources.reduce((sum, { text }) => sum + text.split('\n').length - 1, 0),
      'knotted rooms': knots.reduce((sum, knot) => sum + knot.length, 0),
      'deepest chain': deepestChain(fileGraph(sources)),
    };
  });
  console.table(rows);
  const edge = filesOf('edge', root);
  console.log(`gateway files of a branch creation, as docs/architecture.md walks it: ${creationFiles(root)}`);
  console.log(`results of a batch read by position: ${readsByPosition(edge).length}`);
}

if (import.meta.main) printMap(process.argv[2] ?? ROOT);
