import { expect, test } from 'vitest';
import { filesOf } from './rooms.ts';

/**
 * The gateway takes the first row of a query apart (`const [row] = …`, `firstRow`) and never reads it by its index: for an
 * empty list, `rows[0]` reads `Array.prototype`, which all tenants share.
 */

/** A top-level declaration ends with a bracket at the beginning of a line, so names are compared within one. */
const DECLARATION_END = /^[}\])].*$/m;
const READ_AT_ONCE = /\(\s*await\b[^;]*?\)\s*\[0\]/g;
const AWAITED = /\b(?:const|let) (?:(\w+)(?:: [^=\n]+)?|\{([^}]*)\}|\[([^\]]*)\]) =\s+(?:unwrap\()?await\b/g;

/** Lists of this text that a query may have returned, and that are read by the index 0. */
const readByIndex = (text: string): string[] =>
  text.split(DECLARATION_END).flatMap((declaration) => {
    const names = [...declaration.matchAll(AWAITED)].flatMap(([, name, fields = '', parts = '']) => [
      name,
      ...`${fields},${parts}`.split(',').map((part) => /(\w+)\s*(?:=.*)?$/.exec(part.trim())?.[1]),
    ]);
    return [
      ...[...declaration.matchAll(READ_AT_ONCE)].map(([found]) => found),
      ...names.flatMap((name) => (name && declaration.includes(`${name}[0]`) ? [`${name}[0]`] : [])),
    ];
  });

test.each([
  ['const [row] = await db.select();', []],
  ['const row = (await db\n  .select()\n  .from(a))[0];', ['(await db\n  .select()\n  .from(a))[0]']],
  ['const rows = await db.select();\nreturn rows[0];', ['rows[0]']],
  ['const { results: found } = await statement.all();\nfound[0]?.id', ['found[0]']],
  ['const [project, rows] = await db.batch(all);\nrows[0]', ['rows[0]']],
  ['const rows = unwrap(await read());\nrows[0]', ['rows[0]']],
  ['async function a() {\n  const rows = await b();\n}\nconst c = (rows) => rows[0];', []],
])('the search reads %j', (text, found) => {
  expect(readByIndex(text)).toEqual(found);
});

test('no row of the gateway is read by its index', () => {
  expect(
    filesOf('edge').flatMap(({ path, text }) => readByIndex(text).map((found) => `${path}: ${found}`)),
  ).toEqual([]);
});
