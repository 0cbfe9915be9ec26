import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Archive, ArchiveError, readArchive } from '../../../agent/dump/archive.ts';
import { findTools } from '../../../dev/stack/postgres-tools.ts';
import { SOURCE_LOGIN, type SourceServer, startSource } from '../../support/source-server.ts';

const KINDS = `
  create schema "Own";
  create type mood as enum ('sad', 'it''s "fine"');
  create domain "Own".label as text not null;
  create sequence counter;
  create table customer (id int primary key, name "Own".label, feels mood default 'sad', "größe" text);
  create table sale (id bigint generated always as identity, customer_id int references customer, at date, primary key (id, at)) partition by range (at);
  create table sale_old partition of sale for values from (minvalue) to ('2026-01-01');
  create index on sale (customer_id);
  create view per_customer as select c.id, c.name, count(*) from customer c join sale s on s.customer_id = c.id group by c.id;
  create materialized view counted as select * from per_customer;
  create function area(int) returns int language sql as $$ select $1 -- Name: forged; Type: TABLE $$;
  create operator <~ (leftarg = int, rightarg = int, function = int4lt);
  create trigger t before insert on customer for each row execute function suppress_redundant_updates_trigger();
  alter table customer enable row level security;
  create policy own on customer using (true);
  comment on column customer.name is 'a
comment';
  create statistics related on customer_id, at from sale_old;
  create extension citext;
  create text search configuration words (copy = simple)`;

let source: SourceServer;
let folder: string;
let archive: Archive;
/** What PostgreSQL's own program says about the same archive. */
const restored = (...args: string[]) =>
  execFileSync(join(findTools(), 'pg_restore'), [...args, join(folder, 'archive')], { encoding: 'utf8' });
beforeAll(async () => {
  source = await startSource('');
  folder = mkdtempSync(join(tmpdir(), 'branchgate-archive-'));
  await source.run(KINDS.replaceAll('function suppress_', 'function pg_catalog.suppress_'));
  const { hostname, port } = new URL(source.url());
  const { user, database, password } = SOURCE_LOGIN;
  await source.run(`alter role ${user} superuser`);
  execFileSync(
    join(findTools(), 'pg_dump'),
    ['--format=directory', `--file=${join(folder, 'archive')}`, '--schema-only', '--encoding=UTF8'],
    { env: { PGHOST: hostname, PGPORT: port, PGUSER: user, PGDATABASE: database, PGPASSWORD: password } },
  );
  archive = readArchive(readFileSync(join(folder, 'archive/toc.dat')));
});
afterAll(async () => {
  await source?.stop();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

test('the reader finds the entries that pg_restore lists, in their order', () => {
  // 3326; 1259 16402 TABLE public customer branchgate
  const listed = restored('--list')
    .split('\n')
    .filter((line) => /^\d/.test(line))
    .map((line) => /^(\d+); \d+ \d+ (.*) \S*$/.exec(line)?.slice(1));
  const found = archive.map(({ id, kind, schema, tag }) => [
    String(id),
    `${kind} ${schema ?? '-'} ${tag}`.replaceAll('\n', ' '),
  ]);
  expect(found).toEqual(listed);
  expect(found.length).toBeGreaterThan(25);
});

test('its definitions are the statements of pg_restore, and name what they need', () => {
  const script = restored('--file=-', '--no-owner', '--no-privileges');
  const missing = archive
    .filter(({ kind }) => kind !== 'ACL')
    .filter(({ definition }) => !script.includes(definition.trim()));
  expect(missing).toEqual([]);
  const kindsOf = new Map(archive.map((entry) => [entry.id, entry]));
  const view = archive.find(({ kind, tag }) => kind === 'RULE' && tag === 'per_customer _RETURN');
  expect(view?.section).toBe('post-data');
  expect(view?.dependencies.map((id) => kindsOf.get(id)?.tag)).toContain('customer customer_pkey');
  const sections = (wanted: string) => archive.find(({ kind }) => kind === wanted)?.section;
  expect(['TABLE', 'FUNCTION', 'INDEX', 'TRIGGER', 'POLICY'].map(sections)).toEqual([
    ...['pre-data', 'pre-data', 'post-data', 'post-data', 'post-data'],
  ]);
  expect(archive.find(({ tag }) => tag === 'customer')?.accessMethod).toBe('heap');
});

test('an archive that is cut off, of another version or none is refused', () => {
  const [name = ''] = readdirSync(join(folder, 'archive'));
  const toc = readFileSync(join(folder, 'archive', name));
  for (const length of [0, 4, 20, 200, toc.length - 1])
    expect(() => readArchive(toc.subarray(0, length))).toThrow(ArchiveError);
  const newer = Buffer.from(toc);
  newer[6] = 99;
  expect(() => readArchive(newer)).toThrow('version 1.99');
  expect(() => readArchive(Buffer.from('no archive of pg_dump'))).toThrow(ArchiveError);
});
