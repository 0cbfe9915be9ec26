import { describe, expect, test } from 'vitest';
import { deepestChain, fileGraph, filesOf, importsOf, knotsOf, readsByPosition, roomGraph } from './rooms.ts';

const SOURCE_FOLDERS = [
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
  'vitest',
];
const HAVE_DEFAULT_EXPORTS = ['edge/worker.ts', 'console/vite.config.ts'];

/** Generated from the API's description, and from the console's routes. */
const GENERATED = ['client/api.ts', 'console/app/route-tree.gen.ts'];

const files = SOURCE_FOLDERS.flatMap((folder) => filesOf(folder)).filter(
  ({ path }) => !GENERATED.includes(path),
);

const within = (folders: readonly string[]) => (path: string) =>
  folders.some((folder) => path === folder || path.startsWith(`${folder}/`));

/** `<file> -> <import>` for what these folders must not import. */
const trespasses = (inFolder: (path: string) => boolean, forbidden: (name: string) => boolean) =>
  files
    .filter(({ path }) => inFolder(path))
    .flatMap(({ path, imports }) => imports.filter(forbidden).map((name) => `${path} -> ${name}`));

const ofPlatform =
  (...prefixes: string[]) =>
  (name: string) =>
    prefixes.some((prefix) => name.startsWith(prefix));

/** The first cycle of a graph, as the path that leads back to its beginning; null if there is none. */
function findCycle(graph: ReadonlyMap<string, readonly string[]>): string[] | null {
  const finished = new Set<string>();
  const visit = (node: string, path: readonly string[]): string[] | null => {
    const start = path.indexOf(node);
    if (start >= 0) return [...path.slice(start), node];
    if (finished.has(node)) return null;
    for (const next of graph.get(node) ?? []) {
      const cycle = visit(next, [...path, node]);
      if (cycle) return cycle;
    }
    finished.add(node);
    return null;
  };
  for (const node of graph.keys()) {
    const cycle = visit(node, []);
    if (cycle) return cycle;
  }
  return null;
}

describe('the search itself', () => {
  test('reads every form of import', () => {
    const text = [
      "import { a } from './a.ts';",
      "import type { b } from '../b.ts';",
      'import {\n  c,\n  type d,\n} from "node:fs";',
      "import 'pg';",
      "export { e } from './e.ts';",
      "const f = await import('cloudflare:workers');",
      "export const g = 'pg'",
    ].join('\n');
    expect(importsOf('edge/x/y.ts', text)).toEqual([
      'edge/x/a.ts',
      'edge/b.ts',
      'node:fs',
      'pg',
      'edge/x/e.ts',
      'cloudflare:workers',
    ]);
  });

  test.each<[string, Record<string, string[]>, string[] | null]>([
    ['no cycle', { a: ['b', 'c'], b: ['d'], c: ['d'], d: [] }, null],
    ['a file that imports itself', { a: ['b'], b: ['b'] }, ['b', 'b']],
    ['two files', { a: ['b'], b: ['a'] }, ['a', 'b', 'a']],
    [
      'a cycle behind a long path',
      { a: ['b', 'c'], b: [], c: ['d'], d: ['e'], e: ['c'] },
      ['c', 'd', 'e', 'c'],
    ],
    ['a file outside the graph', { a: ['elsewhere'] }, null],
  ])('cycles: %s', (_, graph, cycle) => {
    expect(findCycle(new Map(Object.entries(graph)))).toEqual(cycle);
  });

  test('a type import in a source closes a cycle', () => {
    const source = (path: string, text: string) => ({ path, text, imports: importsOf(path, text) });
    const sources = [
      source('edge/a.ts', "import { b } from './x/b.ts';"),
      source('edge/x/b.ts', "import type { A } from '../a.ts';"),
    ];
    expect(findCycle(fileGraph(sources))).toEqual(['edge/a.ts', 'edge/x/b.ts', 'edge/a.ts']);
  });

  test('a chain is as long as the longest way, not the shortest', () => {
    const graph = { a: ['d', 'b'], b: ['c'], c: ['d', 'elsewhere'], d: [] };
    expect(deepestChain(new Map(Object.entries(graph)))).toBe(4);
  });

  test('rooms: files at the top of a part stand alone, folders hold theirs, and a knot names all of its rooms', () => {
    const source = (path: string, text: string) => ({ path, text, imports: importsOf(path, text) });
    const sources = [
      source('edge/app.ts', "import { a } from './a/one.ts';"),
      source('edge/settings.ts', ''),
      source('edge/a/one.ts', "import type { B } from '../b/two.ts';\nimport '../settings.ts';"),
      source('edge/b/two.ts', "import { c } from '../c/three.ts';"),
      source('edge/c/three.ts', "import { other } from '../a/other.ts';"),
      source('edge/a/other.ts', "import { d } from './one.ts';"),
    ];
    expect(knotsOf(roomGraph(sources))).toEqual([['edge/a', 'edge/b', 'edge/c']]);
  });

  test('finds the sources', () => {
    for (const folder of ['edge', 'shared']) {
      expect(files.filter(({ path }) => within([folder])(path)).length).toBeGreaterThan(5);
    }
  });
});

describe('imports', () => {
  test('shared runs anywhere: no platform, and nothing of those who use it', () => {
    const inShared = within(['shared']);
    expect(trespasses(inShared, ofPlatform('cloudflare:', 'node:'))).toEqual([]);
    expect(trespasses(inShared, within(['edge', 'agent', 'dev', 'test']))).toEqual([]);
  });

  test('edge knows neither the agent, nor the local stack, nor Node, save for its scrypt and the context of a trace', () => {
    const inEdge = within(['edge']);
    expect(trespasses(inEdge, within(['agent', 'dev', 'test']))).toEqual([]);
    expect(trespasses(inEdge, ofPlatform('node:'))).toEqual([
      'edge/trace.ts -> node:async_hooks',
      'edge/crypto/password-hash.ts -> node:crypto',
    ]);
  });

  test('the console knows the service only by its client and by shared rules', () => {
    const inAdminConsole = within(['console']);
    expect(trespasses(inAdminConsole, within(['agent', 'dev', 'edge', 'test']))).toEqual([]);
    expect(trespasses(inAdminConsole, ofPlatform('node:', 'cloudflare:'))).toEqual([]);
  });

  test('the agent knows neither the edge, nor the local stack, nor Cloudflare', () => {
    const inAgent = within(['agent']);
    expect(trespasses(inAgent, within(['edge', 'dev', 'test']))).toEqual([]);
    expect(trespasses(inAgent, ofPlatform('cloudflare:'))).toEqual([]);
  });

  test('the client runs anywhere, and knows nothing but the API', () => {
    const inClient = within(['client']);
    expect(trespasses(inClient, ofPlatform('cloudflare:', 'node:'))).toEqual([]);
    expect(trespasses(inClient, within(['agent', 'dev', 'edge', 'shared', 'test']))).toEqual([]);
  });

  test('the tools for agents run anywhere, and use the public API only', () => {
    const inTools = within(['mcp']);
    expect(trespasses(inTools, ofPlatform('cloudflare:', 'node:'))).toEqual([]);
    expect(trespasses(inTools, within(['agent', 'cli', 'dev', 'edge', 'test', 'shared/protocol']))).toEqual(
      [],
    );
  });

  test('the command line, the action and the fixture use the public API only', () => {
    const users = within(['action', 'cli', 'vitest']);
    expect(trespasses(users, within(['agent', 'dev', 'edge', 'test', 'shared/protocol']))).toEqual([]);
  });

  test('only agent/postgres, agent/operations, agent/pooler, agent/standby, agent/transfer and rehearsals of agents speak to PostgreSQL', () => {
    const speakers = within([
      'agent/postgres',
      'agent/operations',
      'agent/pooler',
      'agent/standby',
      'agent/transfer',
      'cli/run-statements.ts',
      'dev',
    ]);
    expect(
      trespasses(
        (path) => !speakers(path),
        (name) => name === 'pg',
      ),
    ).toEqual([]);
  });
});

/** Where the Hono context may be used: routes, and the pipeline in front of them. */
const CONTEXT_PLACES = ['edge/app.ts', 'edge/documentation', 'edge/pipeline', 'edge/routes'];

/** `hono/html` is a template function without a context. */
const isContext = (name: string) =>
  name === 'edge/pipeline/context.ts' || (/^(@hono\/|hono(\/|$))/.test(name) && name !== 'hono/html');

/** Parts whose folders import each other in one direction only. */
const KNOT_FREE = ['edge', 'agent', 'console', 'cli', 'dev'];

/** Where a failure is thrown for the pipeline to render. Everything else returns a `Result`. */
const THROWING_PLACES = ['edge/app.ts', 'edge/pipeline', 'edge/routes'];

/** Only the top and what serves requests see all bindings; a room declares the ones that it uses. */
const ENV_PLACES = ['edge/app.ts', 'edge/worker.ts', 'edge/pipeline', 'edge/routes'];

describe('structure', () => {
  test('no imports form a cycle, imports of types included', () => {
    expect(findCycle(fileGraph(files))?.join(' -> ') ?? null).toBeNull();
  });

  test.each(KNOT_FREE)('the rooms of %s form no knot, imports of types included', (part) => {
    expect(knotsOf(roomGraph(files.filter(({ path }) => within([part])(path))))).toEqual([]);
  });

  test('a chain of imports in edge has at most 20 files, imports of types included', () => {
    const inEdge = files.filter(({ path }) => within(['edge'])(path));
    expect(deepestChain(fileGraph(inEdge))).toBeLessThanOrEqual(20);
  });

  test('all bindings of the Worker are seen by the top, the pipeline and the routes only', () => {
    const elsewhere = within(ENV_PLACES);
    expect(
      trespasses(
        (path) => within(['edge'])(path) && !elsewhere(path),
        (name) => name === 'edge/env.ts',
      ),
    ).toEqual([]);
  });

  test('failures are thrown by the pipeline and the routes only; below them they are returned', () => {
    const elsewhere = within(THROWING_PLACES);
    expect(
      trespasses(
        (path) => within(['edge'])(path) && !elsewhere(path),
        (name) => name === 'edge/errors.ts',
      ),
    ).toEqual([]);
  });

  test('the Hono context stops at the routes', () => {
    const elsewhere = within(CONTEXT_PLACES);
    expect(trespasses((path) => within(['edge'])(path) && !elsewhere(path), isContext)).toEqual([]);
  });
});

const found = (pattern: RegExp, but: (path: string) => boolean) =>
  files.filter(({ path, text }) => !but(path) && pattern.test(text)).map(({ path }) => path);

describe('sources', () => {
  test('at the edge only host-link knows sockets', () => {
    const elsewhere = (path: string) => !within(['edge'])(path) || within(['edge/host-link'])(path);
    expect(found(/\bWebSocketPair\b|\bacceptWebSocket\b/, elsewhere)).toEqual([]);
  });

  test('no result of a batch is read by its position', () => {
    const text = 'const [row] = results.at(-1) as Row[]; const { meta } = result[3]; results.at(index);';
    expect(readsByPosition([{ path: 'edge/a.ts', text, imports: [] }])).toHaveLength(2);
    expect(readsByPosition(files.filter(({ path }) => within(['edge'])(path)))).toEqual([]);
  });

  test('no first row of a query is read by its index, which would come from a prototype if there is none', () => {
    const byIndex = /\)\s*\)\[0\]|\bvalue\[0\]|^\s*\)\[0\]|\browsRead\[0\]|#read\([^\n]*\)\[0\]/m;
    for (const text of ['(await db.select())[0]', 'written.value[0] ?? job', '  )[0];'])
      expect(byIndex.test(text), text).toBe(true);
    expect(found(byIndex, (path) => !within(['edge', 'mcp'])(path))).toEqual([]);
  });

  test('only the Worker and a configuration have a default export', () => {
    expect(found(/^export default\b|\bas default\b/m, (path) => HAVE_DEFAULT_EXPORTS.includes(path))).toEqual(
      [],
    );
  });
});
