import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  type DumpConnection,
  type DumpOptions,
  dumpSchema,
  removeLeftDumps,
} from '../../../agent/dump/pg-dump.ts';
import { findTools } from '../../../dev/stack/postgres-tools.ts';
import { connect } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import { SOURCE_LOGIN, type SourceServer, startSource } from '../../support/source-server.ts';

let source: SourceServer;
let folder: string;
let connection: DumpConnection;
beforeAll(async () => {
  source = await startSource('');
  folder = mkdtempSync(join(tmpdir(), 'branchgate-dump-'));
  await source.run(`set role app; create schema private; create table private.secret (id int); create schema "a.b"; create table "a.b"."c""d" (id int);
    create table book (id int primary key)`);
  const { user, database, password } = SOURCE_LOGIN;
  const variables = {
    PGHOST: '127.0.0.1',
    PGPORT: String(source.port),
    PGUSER: user,
    PGDATABASE: database,
    PGSSLMODE: 'require',
    PGREQUIREAUTH: 'scram-sha-256',
    PGCHANNELBINDING: 'require',
  };
  connection = { variables, password };
});
afterAll(async () => {
  await source?.stop();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

const dump = (options: Partial<DumpOptions> = {}, to = connection) =>
  dumpSchema({ STATE_DIR: folder, POSTGRES_BIN: findTools() }, to, { within: 60_000, ...options });
const tags = async (options: Partial<DumpOptions> = {}) =>
  (await dump(options)).flatMap(({ kind, tag }) => (kind === 'TABLE' ? [tag] : [])).toSorted();
const left = () => readdirSync(join(folder, 'dumps'));
/** Locks the table until the returned function is called. */
async function locked(): Promise<() => Promise<void>> {
  const session = await connect(source.url());
  await session.query('begin; lock table book in access exclusive mode');
  return () => session.end();
}

test('a dump names nothing of the tenant in its arguments, and leaves nothing', async () => {
  const unlock = await locked();
  const refused = dump();
  refused.catch(() => {});
  await eventually(async () => {
    const [name = ''] = left();
    const inside = join(folder, 'dumps', name);
    expect(statSync(join(inside, 'password')).mode & 0o777).toBe(0o600);
    expect(statSync(inside).mode & 0o777).toBe(0o700);
  });
  const running = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        return [readFileSync(`/proc/${pid}/cmdline`, 'utf8')];
      } catch {
        return [];
      }
    })
    .filter((line) => line.includes(folder));
  expect(running.length).toBeGreaterThan(0);
  for (const line of running)
    for (const secret of [SOURCE_LOGIN.password, SOURCE_LOGIN.user, SOURCE_LOGIN.database])
      expect(line.split('\0')).not.toContain(secret);
  // The lock is not waited for, because everybody else would wait behind the dump.
  await expect(refused).rejects.toMatchObject({
    reason: 'refused',
    message: expect.stringMatching(/statement timeout/),
  });
  await unlock();
  expect(left()).toEqual([]);
});

test('excluded schemas and tables are neither locked nor read, whatever their names', async () => {
  expect(await tags()).toEqual(['book', 'c"d', 'secret']);
  const excluded = { schemas: ['private'], tables: [['a.b', 'c"d']] as const };
  const unlock = await locked();
  expect(await tags({ excluded: { ...excluded, tables: [...excluded.tables, ['public', 'book']] } })).toEqual(
    [],
  );
  await unlock();
});

test('a dump that takes too long, or is stopped, is ended with its process', async () => {
  const unlock = await locked();
  await expect(dump({ within: 50 })).rejects.toMatchObject({ reason: 'too_long' });
  const stop = new AbortController();
  setTimeout(() => stop.abort(), 50);
  await expect(dump({ signal: stop.signal })).rejects.toMatchObject({ reason: 'stopped' });
  await unlock();
  expect(left()).toEqual([]);
});

test('a server that has not proved who it is gets no dump', async () => {
  const of = (variables: Record<string, string>, more: Partial<DumpConnection> = {}) =>
    dump({}, { ...connection, ...more, variables: { ...connection.variables, ...variables } });
  await expect(of({ PGSSLMODE: 'verify-full' }, { authorities: '' })).rejects.toMatchObject({
    reason: 'disconnected',
  });
  await source.run("create role clear login password 'x'; create role trusted login");
  await expect(of({ PGUSER: 'clear' }, { password: 'x' })).rejects.toThrow(
    /cleartext|channel binding|authentication/,
  );
  await expect(of({ PGUSER: 'trusted' })).rejects.toThrow(/channel binding|authentication/);
  const authorities = readFileSync(source.certFile, 'utf8');
  const verified = { PGSSLMODE: 'verify-full', PGHOST: 'localhost', PGHOSTADDR: '127.0.0.1' };
  await expect(of({ ...verified, PGHOST: 'other.example' }, { authorities })).rejects.toThrow(/certificate/);
});

test('a full disk of the host is no fault of the source, and leaves nothing', async () => {
  await source.run(`comment on table book is '${'x'.repeat(20_000)}'`);
  const programs = join(folder, 'full');
  mkdirSync(programs);
  const asUser = process.getuid?.() === 0 ? '' : '--map-root-user';
  writeFileSync(
    join(programs, 'pg_dump'),
    `#!/bin/sh
mkdir "$HOME/archive"
exec unshare --mount ${asUser} sh -c 'mount -t tmpfs -o size=4k full "$HOME/archive" && exec ${findTools()}/pg_dump "$@"' sh "$@"
`,
    { mode: 0o755 },
  );
  const settings = { STATE_DIR: folder, POSTGRES_BIN: programs };
  await expect(dumpSchema(settings, connection, { within: 60_000 })).rejects.toMatchObject({
    code: 'HOST_FULL',
  });
  expect(left()).toEqual([]);
});

test('a source that ends in the middle of a dump is named, and leaves nothing', async () => {
  await locked();
  const dumped = dump();
  dumped.catch(() => {});
  await eventually(async () =>
    expect(
      await source.run(
        "select from pg_stat_activity where application_name ~ '^branchgate-dump' and wait_event_type = 'Lock'",
      ),
    ).toHaveLength(1),
  );
  await source.end();
  await expect(dumped).rejects.toMatchObject({
    reason: 'disconnected',
    message: expect.stringMatching(/terminat|closed/),
  });
  expect(left()).toEqual([]);
  await source.start();
});

test('a host without the program says what to install, and dumps of a killed agent go', async () => {
  const settings = { STATE_DIR: folder, POSTGRES_BIN: '/nowhere' };
  await expect(dumpSchema(settings, connection, { within: 1_000 })).rejects.toThrow(/postgresql-client-18/);
  mkdirSync(join(folder, 'dumps/dump-left'), { recursive: true });
  await removeLeftDumps(settings);
  expect(existsSync(join(folder, 'dumps'))).toBe(false);
});
