import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import type { Api } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { SOURCE_LOGIN, type SourceServer, startSource } from '../support/source-server.ts';
import { contentOfD1, ownerOf, tokenOf } from '../support/tenants.ts';

const TENANT = 'following';

let source: SourceServer;
let cli: CommandLine;
let api: Api;
let projectId: string;
beforeAll(async () => {
  source = await startSource();
  await source.run('create table book (id int primary key); alter table book owner to app');
  api = await ownerOf(TENANT);
  projectId = (await api.project('Follower')).id;
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

const follow = (...args: string[]) => cli.run('follow', '--probe', ...args);

test('a source is checked, and what is wrong is listed with what mends it', async () => {
  const done = await follow('--from', '@source');
  expect(done).toMatchObject({
    code: 0,
    stdout: expect.stringContaining('public\tbook\t0\t'),
    stderr: expect.stringContaining('can be followed'),
  });
  expect(await cli.json('follow', '--probe', '--from', '@source')).toMatchObject({
    source: { host: '127.0.0.1', port: source.port, database: 'shop', tls: 'channel_binding' },
    tables: [{ schema: 'public', table: 'book', follows: 'all' }],
    warnings: [{ problem: 'wal_keep_size' }],
  });
  await source.run('create table visit (); alter table visit owner to app; alter role app noreplication');
  const refused = await follow('--from', '@source');
  expect(refused).toMatchObject({
    code: 6,
    stdout: expect.stringMatching(/^error: .*replicate.\n {2}ALTER ROLE "app" REPLICATION/),
    stderr: expect.stringContaining('The source cannot be used.'),
  });
  expect(refused.stdout).toContain('warning: public.visit has no primary key');
  const log = (name: string) => readFileSync(join(devFolder(inject('stack').devDir).logs, name), 'utf8');
  expect(log('gateway.log')).toContain('/follow/probe');
  for (const text of [done.stdout, done.stderr, refused.stdout, log('gateway.log'), log('agent.log')])
    for (const form of [SOURCE_LOGIN.password, encodeURIComponent(SOURCE_LOGIN.password)])
      expect(text).not.toContain(form);
});

test('a URL as an argument is refused, and a name without a source too', async () => {
  expect(await follow('--from', source.url())).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--from @file'),
  });
  if (IS_NIGHTLY)
    expect(await follow('--from', '@nofile')).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('@nofile cannot be read'),
    });
  expect(await follow('--from', '@source', '--table', 'nope')).toMatchObject({
    code: 6,
    stdout: expect.stringContaining('The source has no table nope.'),
  });
});

test('main follows a source, branches have its rows, and it takes over by a cut-over', async () => {
  await source.run(`alter role app replication;
    create table note (id int generated always as identity primary key, text text); alter table note owner to app;
    insert into note (text) select 'note ' || n from generate_series(1, 200) n`);
  if (IS_NIGHTLY)
    expect(await cli.run('follow', 'status')).toMatchObject({
      code: 3,
      stderr: expect.stringContaining('main follows nothing.'),
    });
  // Nobody answers the questions.
  expect(await cli.run('follow', '--from', '@source')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--yes'),
  });
  const begun = await cli.run('follow', '--from', '@source', '--yes');
  expect(begun).toMatchObject({
    code: 0,
    stdout: expect.stringContaining('public\tnote'),
    stderr: expect.stringContaining('main follows shop at 127.0.0.1'),
  });
  await source.run("insert into note (text) values ('later')");
  const { body: rule } = await api.post(`/api/v1/projects/${projectId}/network-rules`, {
    cidr: '127.0.0.0/8',
  });
  expect(rule.error).toBeUndefined();
  const main = await api.credentials(projectId, 'main', '?role=owner');
  const notes = 'select count(*)::int as notes from note';
  await eventually(async () => expect(await query(main.direct_url, notes)).toEqual([{ notes: 201 }]));
  await expect(query(main.direct_url, "insert into note (text) values ('here')")).rejects.toThrow();
  const change = { changes: [{ action: 'insert', table: 'note', values: { text: 'here' } }] };
  expect(await api.post(`/api/v1/projects/${projectId}/branches/main/row-changes`, change)).toMatchObject({
    status: 409,
    body: { error: 'BRANCH_FOLLOWING' },
  });
  expect(await cli.json('follow', 'status')).toMatchObject({
    state: 'following',
    problem: null,
    lag_seconds: expect.any(Number),
    source: { host: '127.0.0.1', database: 'shop' },
  });

  const branch = await api.branch(projectId, 'pr-1');
  const { direct_url } = await api.credentials(projectId, branch.id);
  expect(await query(direct_url, notes)).toEqual([{ notes: 201 }]);
  // The branch goes its own way, with sequences that fit.
  const insert = "insert into note (text) values ('branch') returning id";
  expect(await query(direct_url, insert)).toEqual([{ id: 202 }]);

  const done = await cli.run('follow', 'cutover', '--yes');
  expect(done).toMatchObject({ code: 0, stderr: expect.stringContaining('main is open') });
  expect(await query(main.direct_url, insert)).toEqual([{ id: 202 }]);
  if (IS_NIGHTLY) {
    expect(await cli.json('follow', 'status')).toMatchObject({ state: 'cut_over' });
    expect(await cli.run('follow', 'stop', '--yes')).toMatchObject({ code: 6 });
  }
  const log = (name: string) => readFileSync(join(devFolder(inject('stack').devDir).logs, name), 'utf8');
  for (const text of [
    begun.stdout,
    begun.stderr,
    log('gateway.log'),
    log('agent.log'),
    JSON.stringify(contentOfD1()),
  ])
    for (const form of [SOURCE_LOGIN.password, encodeURIComponent(SOURCE_LOGIN.password)])
      expect(text).not.toContain(form);
});
