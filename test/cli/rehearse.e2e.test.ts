import { rmSync } from 'node:fs';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import type { Schemas } from '../../client/client.ts';
import type { Api, ProjectBody } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';

const TENANT = 'rehearsing';
const { url } = inject('stack');

let api: Api;
let project: ProjectBody;
let cli: CommandLine;

beforeAll(async () => {
  api = await ownerOf(TENANT);
  project = await api.project('Shop');
  const token = await tokenOf({ tenant: TENANT });
  const settings = { BRANCHGATE_URL: url, BRANCHGATE_PROJECT: project.id, BRANCHGATE_TOKEN: token };
  cli = await CommandLine.open(settings);
  await api.allow(project.id);
  const { direct_url } = await api.credentials(project.id, 'main');
  await query(direct_url, 'create table book as select n as id from generate_series(1, 1000) as n');
});
afterAll(() => rmSync(cli.folder, { recursive: true, force: true }));

const names = async () =>
  (await cli.json<{ branch_name: string }[]>('branch', 'list')).map(({ branch_name }) => branch_name);
const psql = (sql: string) => ['--', 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-Atc', sql];
const eventsOf = async (name: string) => {
  const { body } = await api.get<{ audit_events: { metadata: unknown }[] }>(
    `/api/v1/audit-events?name=${name}&project_id=${project.id}`,
  );
  return body.audit_events.map(({ metadata }) => metadata);
};

test('a danger ends with exit code 9, and the output of the command is not in the report', async () => {
  const { code, stdout, stderr } = await cli.run(
    'rehearse',
    '--json',
    ...psql("alter table book alter id type bigint; select 'migrated as ' || current_user"),
  );
  expect({ code, stderr }).toEqual({ code: 9, stderr: expect.stringContaining('migrated as g_') });
  const { exit_code, state, report, server_version, source_version } = JSON.parse(
    stdout,
  ) as Schemas['Rehearsal'] & { exit_code: number };
  expect({ exit_code, state }).toEqual({ exit_code: 0, state: 'finished' });
  expect([server_version, source_version]).toEqual([expect.stringMatching(/^18\b/), null]);
  expect(report?.dangers).toEqual([{ kind: 'rewrite', schema: 'public', name: 'book' }]);
  expect(report?.schema.statements.join()).toContain('ALTER COLUMN "id" TYPE bigint');
  expect(await names()).toEqual(['main']);
});

test('a safe migration ends with exit code 0, and the command says what was not rehearsed', async () => {
  const { code, stdout, stderr } = await cli.run(
    'rehearse',
    ...psql('create index concurrently by_id on book (id)'),
  );
  expect(code).toBe(0);
  expect(stdout).toMatch(/^Verdict: safe\n(?:.*\n)*? {2}added index public\.by_id\n/);
  expect(stderr).toContain('The load of main was not rehearsed');
});

test.runIf(IS_NIGHTLY)('a command that fails is reported as failed, with what it had done', async () => {
  const { code, stdout, stderr } = await cli.run(
    'rehearse',
    ...psql('create index on book (id); select 1 / 0'),
  );
  expect(code).toBe(1);
  expect(stdout).toMatch(/^Verdict: failed\n {2}The migration ended with an error/);
  expect(stdout).not.toContain('safe');
  expect(stderr).toContain('The command ended with exit code 1');
  expect(await names()).toEqual(['main']);
});

test.runIf(IS_NIGHTLY)('a command that fails is reported to a program as failed', async () => {
  const { code, stdout } = await cli.run('rehearse', '--json', ...psql('select 1 / 0'));
  expect(code).toBe(1);
  expect(JSON.parse(stdout)).toMatchObject({ exit_code: 1, report: { verdict: 'failed' } });
});

test.runIf(IS_NIGHTLY)('Ctrl-C leaves nothing', async () => {
  const { child, result } = cli.start(['rehearse', '--', 'sh', '-c', 'echo ready >&2; sleep 60']);
  let output = '';
  child.stderr?.on('data', (chunk: string) => {
    output += chunk;
  });
  await eventually(async () => expect(output).toContain('ready'), 60);
  process.kill(-(child.pid ?? 0), 'SIGINT');
  expect(await result).toMatchObject({
    code: 130,
    stdout: '',
    stderr: expect.stringContaining('Interrupted.'),
  });
  expect(await names()).toEqual(['main']);
});

test.runIf(IS_NIGHTLY).each([['rehearse'], ['exec --ephemeral']])(
  'kill -9 of %s leaves nothing after the lease',
  { timeout: 180_000 },
  async (command) => {
    const script = ['--', 'sh', '-c', 'echo ready >&2; sleep 600'];
    const { child, result } = cli.start([...command.split(' '), ...script]);
    let output = '';
    child.stderr?.on('data', (chunk: string) => {
      output += chunk;
    });
    await eventually(async () => expect(output).toContain('ready'), 60);
    process.kill(-(child.pid ?? 0), 'SIGKILL');
    await result;
    expect(await names()).toHaveLength(2);
    await eventually(async () => expect(await names()).toEqual(['main']), 120);
  },
);

test.runIf(IS_NIGHTLY)(
  'only a branch with a lease can be rehearsed, and both ends of it are audited',
  async () => {
    const path = (branch: string) => `/api/v1/projects/${project.id}/branches/${branch}/rehearsal`;
    expect(await api.call('POST', path('main'))).toMatchObject({
      status: 409,
      body: { error: 'BRANCH_NOT_LEASED' },
    });
    await api.branch(project.id, 'leased', { lease_seconds: 300 });
    expect(await api.get(path('leased'))).toMatchObject({ status: 404 });
    expect(await api.call('POST', `${path('leased')}/finish`)).toMatchObject({ status: 404 });
    const limits = { lock_ms: 1000, table_bytes: 104_857_600 };
    expect(await api.call('POST', path('leased'))).toMatchObject({ status: 201, body: { limits } });
    expect(await api.get(path('leased'))).toMatchObject({
      status: 200,
      body: { state: 'running', report: null },
    });
    const finished = await api.call('POST', `${path('leased')}/finish`);
    expect(finished).toMatchObject({ status: 200, body: { report: { verdict: 'safe' } } });
    expect(await api.get(path('leased'))).toMatchObject({ body: finished.body });
    expect(await eventsOf('rehearsal.started')).toContainEqual(limits);
    expect(await eventsOf('rehearsal.finished')).toContainEqual({ verdict: 'safe', dangers: 0 });
  },
);
