import { execFile } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { NO_ID_TOKEN } from '../../action/sign-in.ts';
import { ROOT } from '../../dev/build/repository.ts';
import type { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf } from '../support/tenants.ts';
import { GITHUB_TOKEN, Runner } from './runner.ts';

const run = promisify(execFile);
const { url } = inject('stack');

let api: Api;
let project: string;
let runner: Runner;

beforeAll(async () => {
  runner = await Runner.start();
  api = await ownerOf('action');
  ({ id: project } = await api.project('Shop'));
  const { status } = await api.post(`/api/v1/projects/${project}/trusts`, {
    issuer: runner.issuer,
    audience: url,
    claims: { repository: 'acme/shop' },
    role: 'operator',
    branch_pattern: 'pr-*',
  });
  expect(status).toBe(201);
});
afterAll(async () => {
  await runner?.stop();
  if (runner) rmSync(runner.folder, { recursive: true });
});

const branches = async () => {
  const { body } = await api.get<{ branches: { branch_name: string }[] }>(
    `/api/v1/projects/${project}/branches`,
  );
  return body.branches.map(({ branch_name }) => branch_name);
};

test('a pull request gets a branch, a rerun the same one, and its end deletes it', async () => {
  const inputs = { url, project, ttl: '2h', labels: 'pr=7\nteam=web' };
  const user = { type: 'User' as const };
  for (let other = 0; other < 119; other += 1)
    runner.comments.push({ id: 1000 + other, body: `Comment ${other} of a person`, user });
  // A person may have copied the marker of the action's comments.
  runner.comments.push({ id: 1119, body: `<!-- branchgate ${project} pr-7 --> of a person`, user });

  const first = await runner.run(inputs);
  expect(first.log).toContain('Branch pr-7 was created');
  expect(first).toMatchObject({ code: 0, outputs: { branch: 'pr-7', created: 'true' } });
  expect(await branches()).toEqual(['main', 'pr-7']);
  const { 'direct-url': direct = '', 'database-url': pooled = '' } = first.outputs;
  await migrate({ DATABASE_URL: direct, ...first.exported });
  await query(direct, 'drop table by_node; create table migrated (id int)');
  await query(pooled, 'insert into migrated values (1)');

  // A runner hides each value that the log announces as a secret; the rest of the log is public.
  const shown = first.log.replaceAll(/^::add-mask::.*$/gm, '');
  for (const secret of [direct, pooled, new URL(direct).password, new URL(pooled).password, GITHUB_TOKEN])
    expect(shown).not.toContain(secret);
  expect(first.log).toContain(`::add-mask::${direct}`);

  const [comment, ...more] = runner.comments.slice(120);
  expect(more).toEqual([]);
  expect(comment?.body).toMatch(/^<!-- branchgate \S+ pr-7 -->\n### Database branch `pr-7`\n/);
  expect(comment?.body).toContain(`${url}/projects/${project}/branches/pr-7/tables`);
  expect(comment?.body).toContain(`| expires | ${first.outputs['expires-at']} |`);
  expect(comment?.body).toMatch(/\| size \| (?:\d+\.\d MiB|not measured yet) \|/);

  // The job has changed the branch by its end. The trust does not reach `main`, except to clone it.
  const { log, code } = await runner.finish(inputs, first.state);
  expect({ code, warnings: log.match(/^::warning::.*$/gm) }).toEqual({ code: 0, warnings: null });
  expect(comment?.body).toMatch(/^<!-- branchgate (?:.*\n)*\| expires (?:.*\n)*#### Changes\n/);
  expect(comment?.body).toContain(' + table public.migrated\n');
  expect(comment?.body).toContain('\n CREATE TABLE public.migrated (');
  expect(await branches()).toEqual(['main', 'pr-7']);

  const again = await runner.run(inputs, { action: 'synchronize' });
  expect(again).toMatchObject({ code: 0, outputs: { created: 'false' } });
  expect(again.outputs['branch-id']).toBe(first.outputs['branch-id']);
  expect(runner.comments).toHaveLength(121);

  expect(await runner.run(inputs, { action: 'closed' })).toMatchObject({ code: 0, outputs: {} });
  expect(await branches()).toEqual(['main']);
  expect(runner.comments[120]?.body).toContain('Deleted with the pull request');
  expect(runner.comments[120]?.body).not.toContain('Changes');
  if (!IS_NIGHTLY) return;
  const gone = await runner.run(inputs, { action: 'closed' });
  expect(gone).toMatchObject({ code: 0, log: expect.stringContaining('does not exist any more') });
});

test.runIf(IS_NIGHTLY)(
  'in a full project the step fails, and names the limit and who raises it',
  async () => {
    expect((await api.fill(project)).status).toBe(429);
    const { code, log } = await runner.run({ url, project });
    expect([code, log]).toEqual([1, expect.stringMatching(/^::error::.*branch_limit.*platform operator/m)]);
    for (const name of await branches())
      if (name.startsWith('full-')) await api.delete(`/api/v1/projects/${project}/branches/${name}`);
  },
);

test('a rehearsal of the migration is in the comment, and its danger fails the step', async () => {
  const migration = `${process.execPath}
    -e
    const { execFileSync } = require('child_process');
    for (const name of Object.keys(process.env)) if (/^(INPUT|ACTIONS|STATE)_/.test(name)) throw new Error(name);
    execFileSync('psql', ['-Xqc', 'drop table doomed'], { stdio: 'inherit' }); console.log('ran ' + process.env.DIRECT_URL)`
    .split('\n')
    .map((line) => line.trim());
  const [node = '', flag = '', ...script] = migration;
  await api.allow(project);
  const { direct_url } = await api.credentials(project, 'main');
  await query(direct_url, 'create table doomed as select 1 as n');
  const inputs = { url, project, command: 'rehearse', run: [node, flag, script.join(' ')].join('\n') };

  const { code, log, outputs } = await runner.run(inputs);
  expect({ code, outputs }).toEqual({ code: 1, outputs: { verdict: 'danger' } });
  expect(log).toMatch(/^::error::The rehearsal found a danger/m);
  expect(log).toMatch(/^Verdict: danger$/m);
  const [, ran = ''] = /^ran (\S+)$/m.exec(log) ?? [];
  const announced = [...log.matchAll(/^::add-mask::(.*)$/gm)].map(([, secret]) => secret);
  expect(announced).toContain(new URL(ran).password);
  const comment = runner.comments.find(({ body }) => body.includes('#### Rehearsal'));
  expect(comment?.body).toMatch(/^ {3}public\.doomed: the table has fewer rows than before$/m);
  expect(await branches()).toEqual(['main']);
  expect(await query(direct_url, 'select n from doomed')).toEqual([{ n: 1 }]);
});

test.runIf(IS_NIGHTLY)(
  'a new column that the masking policy does not cover fails the check, until the file of the repository has a rule',
  async () => {
    const { direct_url } = await api.credentials(project, 'main');
    await query(direct_url, 'create table customer (id int primary key, email text)');
    const email = { table: 'customer', column: 'email', with: 'email' };
    const policy = { rules: [email], unlisted: 'refuse_likely_personal' };
    const stored = await api.call('PUT', `/api/v1/projects/${project}/masking`, { body: policy });
    expect(stored.status).toBe(200);
    const made = await api.branch(project, 'pr-7');
    const check = (masking = '') => runner.run({ url, project, command: 'check-masking', masking });
    expect(await check()).toMatchObject({ code: 0, outputs: { 'masking-covered': 'true' } });

    const ofBranch = await api.credentials(project, made.id);
    await query(ofBranch.direct_url, 'alter table customer add email2 text');
    const refused = await check();
    expect(refused).toMatchObject({ code: 1, outputs: { 'masking-covered': 'false' } });
    expect(refused.log).toMatch(/^::error::The masking policy does not cover pr-7 \(1 problem\)/m);
    expect(refused.log).toMatch(/^public\.customer\.email2: its name says e-mail$/m);
    const comment = runner.comments.find(({ body }) => body.includes('#### Masking'));
    expect(comment?.body).toContain('public.customer.email2: its name says e-mail');

    const file = (text: string) => writeFileSync(join(runner.folder, 'masking.json'), text);
    file(JSON.stringify({ ...policy, rules: [email, { ...email, column: 'email2' }] }));
    expect(await check('masking.json')).toMatchObject({ code: 0, outputs: { 'masking-covered': 'true' } });
    expect(comment?.body).toContain('The masking policy covers pr-7.');
    if (IS_NIGHTLY) {
      file('{');
      expect(await check('masking.json')).toMatchObject({
        code: 1,
        log: expect.stringContaining('masking.json is not valid JSON'),
      });
      expect(await runner.run({ url, project, masking: 'project' })).toMatchObject({
        code: 1,
        log: expect.stringContaining('masking is for the commands'),
      });
    }
    const migration = { run: 'psql\n-qc\nalter table customer add phone text', masking: 'project' };
    const rehearsed = await runner.run({ url, project, command: 'rehearse', ...migration });
    expect(rehearsed).toMatchObject({
      code: 1,
      outputs: { verdict: 'safe', 'masking-covered': 'false' },
      log: expect.stringMatching(/^public\.customer\.phone: its name says phone number$/m),
    });
    await api.delete(`/api/v1/projects/${project}/branches/${made.id}?purge=true`);
  },
);

test('a fork, which gets no ID token, stops with a sentence and gets no database', async () => {
  const { code, log, outputs } = await runner.run({ url, project }, { isFork: true });
  expect({ code, outputs }).toEqual({ code: 1, outputs: {} });
  expect(log).toContain(NO_ID_TOKEN);
  expect(await branches()).toEqual(['main']);
});

test.each(
  firstByDay(2, [
    ['a branch beyond the trust', { branch: 'production' }, 'NOT_FOUND|Not found'],
    ['shell syntax as a name', { branch: 'pr-$(touch pwned)`id`;' }, 'invalid values'],
    ['an unknown audience', { audience: 'https://other.example' }, 'branchgate trust list'],
  ] as const),
)('%s is refused, and changes nothing', async (_, inputs, sentence) => {
  const { code, log, outputs } = await runner.run({ url, project, ...inputs });
  expect({ code, outputs }).toEqual({ code: 1, outputs: {} });
  expect(log).toMatch(new RegExp(`^::error::.*(?:${sentence})`, 'm'));
  expect(await branches()).toEqual(['main']);
});

/**
 * The scripts of docs/ci.md for services without an action: the one of the GitLab job creates, the other
 * deletes.
 */
function recipes() {
  const page = readFileSync(join(ROOT, 'docs/ci.md'), 'utf8');
  const [, create = ''] = /^ {4}- \|\n(.*?)^ {2}artifacts:/ms.exec(page) ?? [];
  const [, remove = ''] = /^```sh\n(set -eu\n.*?)^```/ms.exec(page) ?? [];
  return { create, remove };
}

/** A migration of Node, with the variables of a job only. @throws when the driver refuses the server */
const migrate = (variables: Record<string, string>) =>
  run(
    process.execPath,
    [
      '-e',
      `const { Client } = require('${join(ROOT, 'node_modules/pg')}');
       const client = new Client({ connectionString: process.env.DATABASE_URL });
       client.connect().then(() => client.query('create table if not exists by_node (id int)')).then(() => client.end());`,
    ],
    { env: { PATH: process.env.PATH ?? '', ...variables } },
  );

test('the recipes for GitLab and curl create a branch and delete it', async () => {
  const { create, remove } = recipes();
  const shell = async (script: string) => {
    const { PATH = '' } = process.env;
    const settings = { API: `${url}/api/v1`, PROJECT: project, BRANCH: 'pr-9' };
    const env = { PATH, ...settings, ID_TOKEN: await runner.idToken(url) };
    return run('sh', ['-c', script], { cwd: runner.folder, env });
  };
  await shell(create);
  const written = readFileSync(join(runner.folder, 'database.env'), 'utf8');
  await migrate(
    Object.fromEntries([...written.matchAll(/^(\w+)=(.*)$/gm)].map(([, name, value]) => [name, value])),
  );
  const [, direct = ''] = /^DATABASE_URL=(\S+)$/m.exec(written) ?? [];
  expect(await query(direct, "select to_regclass('by_node')::text as made")).toEqual([{ made: 'by_node' }]);
  expect(await branches()).toEqual(['main', 'pr-9']);
  await shell(remove);
  expect(await branches()).toEqual(['main']);
});

test('a comment that is refused is a warning', async () => {
  runner.refusal = 403;
  const { code, log } = await runner.run({ url, project, branch: 'pr-8', ttl: '1h' });
  expect(code).toBe(0);
  expect(log).toMatch(/^::warning::.*pull-requests: write/m);
  runner.refusal = null;
});

test('a change of main is proposed once for each plan, and applied after the merge', async () => {
  const { id } = await api.project('Changing shop');
  const trust = {
    issuer: runner.issuer,
    audience: url,
    claims: { repository: 'acme/shop' },
    role: 'operator',
  };
  expect((await api.post(`/api/v1/projects/${id}/trusts`, trust)).status).toBe(201);
  await api.allow(id);
  const main = (await api.credentials(id, 'main', '?role=owner')).direct_url;
  await query(main, 'create table "`work`" (id int)');
  const inputs = { url, project: id };
  const branch = await runner.run(inputs);
  await query(branch.outputs['direct-url'] ?? '', 'alter table "`work`" add note text');
  const propose = () => runner.run({ ...inputs, command: 'propose' });
  const changes = async () =>
    (await api.get<{ changes: { id: string; state: string }[] }>(`/api/v1/projects/${id}/changes`)).body
      .changes;
  const first = await propose();
  expect(first).toMatchObject({ code: 0, outputs: { verdict: 'safe' } });
  const again = await propose();
  expect(again.outputs['change-id']).toBe(first.outputs['change-id']);
  expect((await changes()).map(({ state }) => state).toSorted()).toEqual(['closed', 'rehearsed']);
  const comment = runner.comments.find(({ body }) => body.includes('#### Change of main'));
  expect(comment?.body).toContain('AccessExclusiveLock on public.`work`');

  await runner.run({ ...inputs, command: 'delete' }, { action: 'closed', merged: true });
  const applied = await runner.run({ ...inputs, command: 'apply' }, { action: 'closed', merged: true });
  expect(applied).toMatchObject({ code: 0, outputs: { 'change-id': first.outputs['change-id'] } });
  expect(comment?.body).toContain('It is applied.');
  expect(await query(main, 'select note from "`work`"')).toEqual([]);

  const file = join(runner.folder, 'migration.sql');
  writeFileSync(file, 'select 1/0');
  await runner.run(inputs);
  const failed = await runner.run({ ...inputs, command: 'propose', sql: file });
  expect(failed).toMatchObject({ code: 1, outputs: { verdict: 'failed' } });
  const closed = await runner.run({ ...inputs, command: 'apply' }, { action: 'closed' });
  expect(closed).toMatchObject({ code: 0, log: expect.stringContaining('was not merged') });
  await runner.run(inputs, { action: 'closed' });
});
