import { execFileSync, spawnSync } from 'node:child_process';
import { chownSync, globSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, inject, test } from 'vitest';
import { serverUser } from '../../dev/stack/os-user.ts';
import { CommandLine } from '../support/command-line.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/free-port.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { startSource } from '../support/source-server.ts';
import { temporaryFolder } from '../support/stack/stack.ts';
import { AT_ONCE_BYTES, TcpProxy } from '../support/tcp-proxy.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';

/** With a table that is copied by itself, and an index that waits for a lock of the database. */
const STORE = `${readFileSync(join(import.meta.dirname, '../support/music-store.sql'), 'utf8')};
  create table "Large ""one""" (id int primary key, filler text not null);
  insert into "Large ""one""" select n, repeat(md5(n::text), 30) from generate_series(1, 20000) n;
  create function waits(id int) returns int immutable language plpgsql as $$ begin
    perform pg_catalog.pg_advisory_lock_shared(7); perform pg_catalog.pg_advisory_unlock_shared(7); return id;
  end $$;
  create index waiting on artist (waits(artist_id));
  create sequence counter; select setval('counter', 12345);`;

/** The programs of a PostgreSQL server of the system that its `pg_dump` can read; null if there is none. */
function foreignServer(): string | null {
  const { stdout, error } = spawnSync('pg_dump', ['--version'], { encoding: 'utf8' });
  const major = / (\d+)/.exec(stdout ?? '')?.[1];
  if (error || major === undefined) return null;
  return globSync(`/usr/lib/postgresql/${major}/bin/initdb`)[0]?.replace(/\/initdb$/, '') ?? null;
}

/** A server without TLS, as another product would have it. @returns its URL, and ends it */
async function startForeign(binaries: string) {
  const user = serverUser();
  const folder = join(temporaryFolder(), 'data');
  mkdirSync(folder);
  chownSync(folder, user.uid, user.gid);
  const port = await freePort();
  const run = (program: string, ...args: string[]) =>
    execFileSync(join(binaries, program), args, {
      uid: user.uid,
      gid: user.gid,
      cwd: folder,
      stdio: 'ignore',
    });
  run('initdb', '--auth=trust', '--username=them', '--encoding=UTF8', `--pgdata=${folder}`);
  const settings = `-p ${port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off`;
  run('pg_ctl', '--wait', '-D', folder, '-o', settings, '-l', join(folder, 'log'), 'start');
  const stop = () => {
    run('pg_ctl', '--wait', '-D', folder, '-m', 'immediate', 'stop');
    rmSync(join(folder, '..'), { recursive: true });
  };
  return { url: `postgresql://them@127.0.0.1:${port}/postgres`, stop };
}

/** What an import has to keep, in a form that is the same for all versions of PostgreSQL. */
const CONTENT = [
  "select table_name, column_name, data_type, is_nullable from information_schema.columns where table_schema = 'public'",
  "select conrelid::regclass, conname, pg_get_constraintdef(oid) from pg_constraint where connamespace = 'public'::regnamespace and contype <> 'n'",
  "select indexdef from pg_indexes where schemaname = 'public'",
];

async function contentOf(url: string, ssl: false | object) {
  const client = await connect(url, { ssl });
  try {
    const lines = async (sql: string) =>
      (await client.query<{ line: string }>(`select t::text as line from (${sql}) t order by 1`)).rows;
    const tables = (
      await client.query<{ name: string }>(
        "select format('%I', tablename) as name from pg_tables where schemaname = 'public' order by 1",
      )
    ).rows;
    const content = [];
    for (const sql of [...CONTENT, ...tables.map(({ name }) => `select * from public.${name}`)])
      content.push(await lines(sql));
    return { tables: tables.length, rows: content.flat().length, content };
  } finally {
    await client.end();
  }
}

test.runIf(IS_NIGHTLY)(
  'import copies a foreign database in pieces; stopped at any time, it leaves nothing',
  { timeout: 120_000 },
  async ({ skip }) => {
    const binaries = foreignServer();
    if (binaries === null) return skip('no server of the same version as pg_dump is installed');
    const foreign = await startForeign(binaries);
    const api = await ownerOf('importing');
    const project = await api.project('Imported');
    const files = temporaryFolder();
    const cli = await CommandLine.open({
      BRANCHGATE_URL: inject('stack').url,
      BRANCHGATE_PROJECT: project.id,
      BRANCHGATE_TOKEN: await tokenOf({ tenant: 'importing' }),
      TMPDIR: files,
    });
    try {
      const source = await connect(foreign.url, { ssl: false });
      await source.query(STORE);
      writeFileSync(join(cli.folder, 'source-url'), foreign.url);

      // Ctrl-C while pg_dump waits for a lock leaves no rule, no file and no row.
      await source.query('begin; lock table artist');
      const { child, result } = cli.start(['import', '--through-here', '--from', '@source-url']);
      const waiting = 'select from pg_locks where not granted';
      await eventually(async () => expect((await source.query(waiting)).rowCount).toBe(1));
      process.kill(-(child.pid ?? 0), 'SIGINT');
      expect(await result).toMatchObject({ code: 1, stderr: expect.stringContaining('Interrupted.') });
      const rules = await api.get(`/api/v1/projects/${project.id}/network-rules`);
      expect(rules.body).toMatchObject({ network_rules: [] });
      expect(readdirSync(files)).toEqual([]);
      await source.query('rollback');
      await source.end();

      writeFileSync(join(cli.folder, 'with-tls'), `${foreign.url}?sslmode=require`);
      expect(await cli.run('import', '--through-here', '--from', '@with-tls')).toMatchObject({
        code: 1,
        stderr: expect.stringContaining('?sslmode=disable'),
      });

      // Each table is committed by itself, so no transaction lasts as long as the import. A failure empties the
      // branch again, also while an index is being made.
      await api.allow(project.id);
      const { direct_url: owner } = await api.credentials(project.id, 'main', '?role=owner');
      const target = await connect(owner, { ssl: { rejectUnauthorized: false } });
      const objects = async () =>
        (
          await target.query(
            "select relname as name from pg_class where relnamespace = 'public'::regnamespace union all select proname from pg_proc where pronamespace = 'public'::regnamespace",
          )
        ).rows;
      await target.query('select pg_advisory_lock(7)');
      const held = cli.start(['import', '--through-here', '--from', '@source-url']);
      const isWaiting = "select from pg_locks where locktype = 'advisory' and not granted";
      await eventually(async () => expect((await target.query(isWaiting)).rowCount).toBe(1));
      const copied = await target.query<{ n: string }>('select count(*) as n from "Large ""one"""');
      expect(copied.rows).toEqual([{ n: '20000' }]);
      process.kill(-(held.child.pid ?? 0), 'SIGINT');
      expect(await held.result).toMatchObject({ code: 1, stderr: expect.stringContaining('Interrupted.') });
      expect(await objects()).toEqual([]);
      await target.query('select pg_advisory_unlock(7)');

      expect(await cli.run('import', '--through-here', '--from', '@source-url', '--jobs', '9')).toMatchObject(
        { code: 2 },
      );
      expect(await cli.run('import', '--through-here', '--from', '@source-url')).toMatchObject({
        code: 0,
        stderr: expect.stringContaining('Imported into main'),
      });
      expect((await target.query('select last_value from counter')).rows).toEqual([{ last_value: '12345' }]);
      await target.end();
      const { direct_url } = await api.credentials(project.id, 'main');
      const before = await contentOf(foreign.url, false);
      expect(before.tables).toBe(12);
      expect(before.rows).toBeGreaterThan(35_000);
      expect(await contentOf(direct_url, { rejectUnauthorized: false })).toEqual(before);
    } finally {
      foreign.stop();
      for (const folder of [cli.folder, files]) rmSync(folder, { recursive: true, force: true });
    }
  },
);

/** How long a slow source sends. No import was longer than an hour as long as it was one transaction. */
const SLOW = { minutes: 61, bytesPerSecond: 4_096 };

test.runIf(IS_NIGHTLY)(
  'an import of more than an hour ends well',
  { timeout: (SLOW.minutes + 20) * 60_000 },
  async () => {
    const rows = Math.ceil((AT_ONCE_BYTES + SLOW.minutes * 60 * SLOW.bytesPerSecond) / 1_024);
    const source = await startSource();
    const proxy = await TcpProxy.start(source.port, SLOW.bytesPerSecond);
    try {
      await source.run(`set role app; create table slow (id int primary key, filler text not null);
        insert into slow select n, repeat(md5(n::text), 32) from generate_series(1, ${rows}) n; analyze slow`);
      const project = await (await ownerOf('importing')).project('Slowly imported');
      const source_url = source.url({ port: proxy.port });
      const begun = performance.now();
      const minutes = () => (performance.now() - begun) / 60_000;
      const { body } = await (await ownerOf('importing')).post<{ id: string }>(
        `/api/v1/projects/${project.id}/import`,
        { source_url },
      );
      // A token is valid for an hour.
      const jobNow = async () =>
        (await (await ownerOf('importing')).get<{ status: string }>(`/api/v1/jobs/${body.id}`)).body;
      let job = await jobNow();
      while (job.status === 'running' || job.status === 'queued') {
        await sleep(5_000);
        job = await jobNow();
      }
      expect(job).toMatchObject({ status: 'succeeded', error: null });
      expect(minutes()).toBeGreaterThan(SLOW.minutes - 1);
      const api = await ownerOf('importing');
      await api.allow(project.id);
      const { direct_url } = await api.credentials(project.id, 'main');
      expect(await query(direct_url, 'select count(*)::int as rows from slow')).toEqual([{ rows }]);
    } finally {
      proxy.stop();
      await source.stop();
    }
  },
);
