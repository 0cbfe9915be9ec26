import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import type { Change } from '../../client/changes.ts';
import { CommandLine } from '../support/command-line.ts';
import { query } from '../support/database.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';

const TENANT = 'changing-by-hand';
const { url } = inject('stack');

let cli: CommandLine;
let directUrl: string;

beforeAll(async () => {
  const api = await ownerOf(TENANT);
  const project = await api.project('Shop');
  const token = await tokenOf({ tenant: TENANT });
  const settings = { BRANCHGATE_URL: url, BRANCHGATE_PROJECT: project.id, BRANCHGATE_TOKEN: token };
  cli = await CommandLine.open(settings);
  await api.allow(project.id);
  directUrl = (await api.credentials(project.id, 'main', '?role=owner')).direct_url;
  await query(directUrl, 'create table book (id int primary key, title text); insert into book values (7)');
});
afterAll(() => rmSync(cli.folder, { recursive: true, force: true }));

const planned = (sql: string) => {
  const file = join(cli.folder, 'migration.sql');
  writeFileSync(file, sql);
  return cli.json<Change>('change', 'create', '-f', file);
};

test('a change goes through its commands, each with its exit code', async () => {
  const { id } = await planned(
    'alter table book add note text; alter table book add check (id > 0) not valid',
  );
  expect(await cli.json<Change[]>('change', 'list')).toMatchObject([{ id, state: 'planned' }]);
  expect((await cli.run('change', 'apply', id, '--yes')).code).toBe(6);

  const rehearsed = await cli.run('change', 'rehearse', id, '--watch');
  expect({ ...rehearsed, stdout: '' }).toMatchObject({ code: 0 });
  expect(rehearsed.stdout).toContain('Rehearsal: safe');
  // The author approves nothing.
  expect((await cli.run('change', 'approve', id)).code).toBe(5);
  const requireApprovals = (n: string) => cli.run('project', 'update', '--change-approvals', n);
  expect((await requireApprovals('1')).code).toBe(0);
  expect(await cli.run('change', 'apply', id, '--yes')).toMatchObject({
    code: 6,
    stderr: expect.stringContaining('lacks an approval'),
  });
  expect((await requireApprovals('3')).code).toBe(2);
  expect((await requireApprovals('0')).code).toBe(0);
  // Nobody is there to answer.
  expect((await cli.run('change', 'apply', id)).code).toBe(2);
  const applied = await cli.run('change', 'apply', id, '--yes', '--watch', '--lock-timeout-ms', '300');
  expect(applied).toMatchObject({ code: 0 });
  expect(await cli.json<Change>('change', 'get', id)).toMatchObject({ state: 'applied', applied_count: 2 });

  await query(directUrl, 'insert into book values (8)');
  const undone = await cli.run('change', 'undo', id, '--yes', '--watch');
  expect(undone).toMatchObject({ code: 0, stderr: expect.stringContaining('public.book: 1 inserted') });
  expect(await query(directUrl, 'select * from book')).toEqual([{ id: 7, title: null }]);
  expect((await cli.run('change', 'delete', id)).code).toBe(6);
});

test('a danger and a failure have exit codes of their own', async () => {
  const danger = await planned('delete from book');
  expect((await cli.run('change', 'rehearse', danger.id, '--watch')).code).toBe(9);
  expect(await cli.json<Change>('change', 'delete', danger.id)).toMatchObject({ state: 'closed' });
  const failing = await planned('alter table book add total int not null');
  const failed = await cli.run('change', 'rehearse', failing.id, '--watch');
  expect(failed).toMatchObject({ code: 1, stderr: expect.stringContaining('Statement 1 failed') });
  expect((await cli.run('change', 'create')).code).toBe(2);
});
