import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CATALOG_CASES } from '../agent/difference/schema/catalog-cases.ts';
import { REPORTED_CASES, SCHEMA_CASES } from '../agent/difference/schema/schema-cases.ts';
import { CATALOG_KINDS, catalogLines, differentLines } from './catalog-lines.ts';
import { connect } from './database.ts';
import { type SourceServer, startSource } from './source-server.ts';

/** The judge of copies and differences has to see each change itself. */
let server: SourceServer;
const clients: pg.Client[] = [];
beforeAll(async () => {
  server = await startSource();
  for (const database of ['here', 'there']) {
    await server.run(`CREATE DATABASE ${database} OWNER app`);
    const client = await connect(Object.assign(new URL(server.url()), { pathname: database }).href);
    await client.query('SET client_min_messages = error');
    clients.push(client);
  }
});
afterAll(async () => {
  for (const client of clients) await client.end();
  await server?.stop();
});

const CASES = [...SCHEMA_CASES, ...REPORTED_CASES, ...CATALOG_CASES];
const HERE = 0;
const THERE = 1;
const linesOf = (at: number) => catalogLines(clients[at] as pg.Client, { rights: true, values: true });
const run = (at: number, sql: string) => clients[at]?.query(sql);

test('each case of the tables changes a line', async () => {
  for (const at of [HERE, THERE])
    for (const [n, { base, there, here }] of CASES.entries()) {
      await run(at, `CREATE SCHEMA case_${n}_; SET search_path = case_${n}_`);
      for (const sql of [base, at === HERE ? here : there])
        if (sql) await run(at, sql.replaceAll('%s', `case_${n}_`));
    }
  const different = differentLines(await linesOf(THERE), await linesOf(HERE)).join('\n');
  expect(CASES.filter((_, n) => !different.includes(`case_${n}_`)).map(({ name }) => name)).toEqual([]);
  for (const at of [HERE, THERE]) {
    await run(at, 'RESET search_path');
    for (const n of CASES.keys()) await run(at, `DROP SCHEMA case_${n}_ CASCADE`);
  }
});

test('how a table came to be is no difference, and values of sequences are one', async () => {
  await run(THERE, 'CREATE TABLE one (a int, b text, c serial); CREATE INDEX ON one (b)');
  const plain = await linesOf(THERE);
  await run(
    THERE,
    `DROP TABLE one; CREATE TABLE one (gone int, a int, b text, c serial); ALTER TABLE one DROP gone;
    CREATE INDEX ON one (b); DROP INDEX one_b_idx; CREATE INDEX ON one (b)`,
  );
  expect(differentLines(plain, await linesOf(THERE))).toEqual([]);
  await run(THERE, "SELECT nextval('one_c_seq')");
  expect(differentLines(plain, await linesOf(THERE))).toEqual([
    '- value public.one_c_seq: 1 false',
    '+ value public.one_c_seq: 1 true',
  ]);
  await run(THERE, 'DROP TABLE one');
});

test('a line that one side has twice counts', () => {
  expect(CATALOG_KINDS.length).toBeGreaterThanOrEqual(25);
  expect(differentLines(['a', 'a'], ['a', 'b'])).toEqual(['- a', '+ b']);
});
