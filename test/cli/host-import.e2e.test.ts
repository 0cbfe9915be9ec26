import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { findTools } from '../../dev/stack/postgres-tools.ts';
import { expectSameCatalogs } from '../agent/transfer/own-catalog.ts';
import type { Api } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { SOURCE_LOGIN, type SourceServer, slowTable, startSource } from '../support/source-server.ts';
import { contentOfD1, ownerOf, tokenOf } from '../support/tenants.ts';

const TENANT = 'importing-on-host';

let source: SourceServer;
let api: Api;
let projectId: string;
let cli: CommandLine;
beforeAll(async () => {
  source = await startSource('');
  await source.run(`alter role app noreplication;
    create table author (id int primary key, name text not null);
    create table book (id int generated always as identity primary key, author_id int references author, title text);
    insert into author values (1, 'Ada');
    insert into book (author_id, title) select 1, 'book ' || n from generate_series(1, 5000) n;
    alter table author owner to app; alter table book owner to app; analyze`);
  api = await ownerOf(TENANT);
  projectId = (await api.project('Imported')).id;
  await api.allow(projectId);
  cli = await CommandLine.open({
    BRANCHGATE_URL: inject('stack').url,
    BRANCHGATE_PROJECT: projectId,
    BRANCHGATE_TOKEN: await tokenOf({ tenant: TENANT }),
  });
  writeFileSync(join(cli.folder, 'source'), source.url());
});
afterAll(async () => {
  if (cli) rmSync(cli.folder, { recursive: true, force: true });
  await source?.stop();
});

const imported = (...args: string[]) => cli.run('import', ...args);
const log = (name: string) => readFileSync(join(devFolder(inject('stack').devDir).logs, name), 'utf8');

test('what is wrong with a source or the command is said before anything begins', async () => {
  expect(await imported()).toMatchObject({ code: 2, stderr: expect.stringContaining('--status') });
  for (const removed of [['--through-here'], ['--branch', 'pr-1']])
    expect(await imported('--from', '@source', ...removed)).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('pg_dump'),
    });
  if (IS_NIGHTLY) expect(await imported('--status')).toMatchObject({ code: 3 });
  const refused = await imported('--from', '@source', '--table', 'nope');
  expect(refused).toMatchObject({
    code: 6,
    stdout: expect.stringContaining('error: The source has no table nope.'),
  });
  expect(await imported('--from', '@source', '--dry-run')).toMatchObject({
    code: 0,
    stderr: expect.stringContaining('can begin'),
  });
});

test('the documented copy over this computer leaves the catalogs and the next values of the source', async () => {
  await cli.run('branch', 'create', 'staging');
  const page = readFileSync(join(ROOT, 'docs/importing.md'), 'utf8');
  const block = /```sh\n(pg_dump [\s\S]*?)```/.exec(page)?.[1];
  // The address of the reader's source.
  const host = '--host db.internal --username app shop';
  const port = new URL(source.url()).port;
  expect(block).toContain(host);
  const typed = block?.replace(host, `--host 127.0.0.1 --port ${port} --username app shop`);
  const [node, file] = cli.words;
  const script = `set -eo pipefail; branchgate() { "${node}" "${file}" "$@"; }; ${typed}`;
  execFileSync('bash', ['-c', script], {
    cwd: cli.folder,
    env: {
      ...cli.environment,
      PATH: `${findTools()}:${process.env.PATH}`,
      PGPASSWORD: SOURCE_LOGIN.password,
      PGSSLMODE: 'require',
    },
  });
  const { direct_url } = await api.credentials(projectId, 'staging', '?role=owner');
  await expectSameCatalogs(await connect(source.url()), await connect(direct_url));
  expect(await query(direct_url, 'select count(*)::int as n from book')).toEqual([{ n: 5000 }]);
  await api.delete(`/api/v1/projects/${projectId}/branches/staging?purge=true`);
});

test('a database elsewhere is imported, and an import that is cancelled leaves main as it was', async () => {
  await source.run(slowTable());
  const { child, result } = cli.start(['import', '--from', '@source']);
  const main = () => api.get(`/api/v1/projects/${projectId}/branches/main`);
  await eventually(async () => expect((await main()).body).toMatchObject({ blocked: { reason: 'import' } }));
  // Ctrl-C leaves it running.
  process.kill(-(child.pid ?? 0), 'SIGINT');
  await result;
  await eventually(async () => expect((await imported('--status')).stderr).toContain('running'));
  expect(await cli.run('psql', '--', '-c', 'select 1')).not.toMatchObject({ code: 0 });
  expect(await imported('--cancel')).toMatchObject({
    code: 0,
    stderr: expect.stringContaining('Cancelled.'),
  });
  expect((await main()).body).toMatchObject({ blocked: null });
  await source.run('drop table slowly; drop domain slow; drop function takes_long');
  const { direct_url } = await api.credentials(projectId, 'main', '?role=owner');
  expect(await query(direct_url, "select relname from pg_class where relname = 'book'")).toEqual([]);

  const done = await imported('--from', '@source', '--jobs', '3');
  expect(done).toMatchObject({
    code: 0,
    stdout: expect.stringContaining('public\tbook\tcopied\t5000\t100'),
    stderr: expect.stringContaining('Imported into main.'),
  });
  const read =
    'select count(*)::int as books, max(name) as author from book join author on author.id = author_id';
  expect(await query(direct_url, read)).toEqual([{ books: 5000, author: 'Ada' }]);
  const { database_url } = await api.credentials(projectId, 'main');
  const insert = "insert into book (author_id, title) values (1, 'new') returning id";
  expect(await query(database_url, insert)).toEqual([{ id: 5001 }]);
  expect(await cli.json('import', '--status')).toMatchObject({ kind: 'branch.import', status: 'succeeded' });
  expect(await imported('--from', '@source')).toMatchObject({
    code: 6,
    stdout: expect.stringContaining('main is not empty'),
  });

  const texts = [
    done.stdout,
    done.stderr,
    log('gateway.log'),
    log('agent.log'),
    JSON.stringify(contentOfD1()),
  ];
  for (const text of texts)
    for (const form of [SOURCE_LOGIN.password, encodeURIComponent(SOURCE_LOGIN.password)])
      expect(text).not.toContain(form);
});
