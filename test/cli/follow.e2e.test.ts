import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { CommandLine } from '../support/command-line.ts';
import { SOURCE_LOGIN, type SourceServer, startSource } from '../support/source-server.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';

const TENANT = 'following';

let source: SourceServer;
let cli: CommandLine;
beforeAll(async () => {
  source = await startSource();
  await source.run('create table book (id int primary key); alter table book owner to app');
  const project = await (await ownerOf(TENANT)).project('Follower');
  cli = await CommandLine.open({
    BRANCHGATE_URL: inject('stack').url,
    BRANCHGATE_PROJECT: project.id,
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
    code: 2,
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
  expect(await follow('--from', '@source', '--table', 'nope')).toMatchObject({
    code: 2,
    stdout: expect.stringContaining('The source has no table nope.'),
  });
});
