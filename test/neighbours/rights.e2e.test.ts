import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { groupName } from '../../shared/branch/login.ts';
import { Api, type Credentials, type ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { attempt, targetOfUrl } from '../support/host/attempts.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { signUp } from '../support/sign-in/sign-in.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';

/**
 * Attacks that need no load: caps, rotation, default privileges, the write block and the instructions for
 * operators.
 */

const GIB = 2 ** 30;
const MIB = 2 ** 20;
const MANY_PROJECTS = 25;
const WAY_BEYOND_QUOTA_MIB = 60;

/** The default number of projects; enough quota for them, so that their number is what is refused. */
const OWN_ACCOUNT_CAPS = { SELF_SIGNUP_PROJECT_LIMIT: '3', SELF_SIGNUP_QUOTA_LIMIT_GIB: '100' };

let stack: Stack;
let api: Api;

beforeAll(async () => {
  stack = await startStack({ env: { ...UNLIMITED, ...OWN_ACCOUNT_CAPS, MEASURE_INTERVAL_SECONDS: '1' } });
  api = new Api(stack.url, await stack.token());
});
afterAll(() => stack?.stop());

const readOnly = (project: ProjectBody, branch: string) =>
  api.credentials(project.id, branch, '?role=read_only');
const ports = ({ database_url, direct_url }: Credentials) => [database_url, direct_url];
const outcomes = (credentials: Credentials) =>
  Promise.all(ports(credentials).map((url) => attempt(targetOfUrl(url))));

test('row 5: one sign-up cannot reserve the storage of the host', async () => {
  const site = { url: stack.url, mails: () => deliveredMails(stack) };
  const { access_token } = await signUp(site, 'greedy@example.com');
  const greedy = new Api(stack.url, access_token);
  const made = [];
  for (let n = 0; n < MANY_PROJECTS; n++) {
    const { status, body } = await greedy.post('/api/v1/projects', { name: `P ${n}`, storage_quota_gib: 5 });
    made.push(status === 201 ? 'made' : `${status} ${body.error}`);
    if (status !== 201) break;
  }
  expect(made.at(-1)).toBe('429 PROJECT_LIMIT_REACHED');
}, 300_000);

describe('row 6: rotation', () => {
  const rotate = (project: ProjectBody, body?: object) =>
    api.post(`/api/v1/projects/${project.id}/branches/main/credentials/rotate`, body);

  test('covers the read-only login, and ends its sessions', async () => {
    const project = await api.project('Leaked');
    await api.allow(project.id);
    const leaked = await readOnly(project, 'main');
    const sessions = await Promise.all(ports(leaked).map((url) => connect(url)));
    expect((await rotate(project)).status).toBe(200);
    const alive = await Promise.allSettled(sessions.map((session) => session.query('select 1')));
    expect(alive.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    expect(await outcomes(leaked)).toEqual(['wrong password', 'wrong password']);
    expect(await outcomes(await readOnly(project, 'main'))).toEqual(['in', 'in']);
  });

  test('of the read-only login alone leaves the others', async () => {
    const project = await api.project('Leaked once');
    await api.allow(project.id);
    const leaked = await readOnly(project, 'main');
    const usual = await api.credentials(project.id, 'main');
    expect((await rotate(project, { roles: ['read_only'] })).status).toBe(200);
    expect(await outcomes(leaked)).toEqual(['wrong password', 'wrong password']);
    expect(await outcomes(usual)).toEqual(['in', 'in']);
  });
});

test.each(['read_only', 'read_write'] as const)(
  'row 7: a %s login that drops what its group owns takes no right from later clones',
  async (role) => {
    const project = await api.project(`Dropped by ${role}`);
    await api.allow(project.id);
    const { database_url } = await api.credentials(project.id, 'main');
    const url = role === 'read_write' ? database_url : (await readOnly(project, 'main')).direct_url;
    await query(url, `drop owned by ${groupName(project.id, role)}`);
    await api.branch(project.id, 'later');
    const later = await api.credentials(project.id, 'later');
    await query(later.direct_url, 'create table made_later (n int)');
    const user = role === 'read_write' ? later : await readOnly(project, 'later');
    const statement =
      role === 'read_write' ? 'insert into made_later values (1)' : 'select * from made_later';
    await expect(query(user.database_url, statement)).resolves.toEqual([]);
  },
);

describe('row 8: what keeps one statement from taking the memory of the machine', () => {
  const TLS = ['--tls-cert', '/tls/cert.pem', '--tls-key', '/tls/key.pem'];

  test('`configuration` prints a bound for the unit of PostgreSQL', async () => {
    // What the tool says about a file that it does not know names all that it knows.
    const refusal = await stack.agentTool('configuration', 'unknown', ...TLS).then(
      () => '',
      ({ stderr }: { stderr: string }) => stderr,
    );
    const files = /choices are ([^\n]*?)\.?\n/.exec(refusal)?.[1]?.split(', ') ?? [];
    expect(files).toContain('postgresql.conf');
    const texts = await Promise.all(
      files.map((file) => stack.agentTool('configuration', file, ...TLS).then(({ stdout }) => stdout)),
    );
    expect(texts.join('\n')).toMatch(/^MemoryMax=/m);
  });

  test('`doctor` names it where it is missing', async () => {
    const said = await stack.agentTool('doctor').catch((error: { stdout: string }) => error);
    expect(said.stdout).toMatch(/MemoryMax|overcommit/);
  });
});

test('row 14: who passes the write block by a grant to PUBLIC is closed out at twice the quota, with a way back', async () => {
  const project = await api.project('Granted');
  await api.allow(project.id);
  const credentials = await api.credentials(project.id, 'main');
  await query(
    credentials.direct_url,
    'create table filled (data text); alter table filled alter data set storage external; grant insert on filled to public',
  );
  const path = `/api/v1/projects/${project.id}`;
  const usage = async () => (await api.get<{ storage_used_bytes: number }>(`${path}/usage`)).body;
  const empty = await eventually(async () => {
    const { storage_used_bytes } = await usage();
    expect(storage_used_bytes).toBeGreaterThan(0);
    return storage_used_bytes;
  });
  const setQuota = async (bytes: number) =>
    expect((await api.patch(`/v1/projects/${project.id}`, { storage_quota_gib: bytes / GIB })).status).toBe(
      200,
    );
  await setQuota(empty + 10 * MIB);

  let written = 0;
  for (; written < WAY_BEYOND_QUOTA_MIB; written += 5) {
    const chunk = `set default_transaction_read_only = off;
      insert into filled select repeat('x', 8000) from generate_series(1, ${(5 * MIB) / 8000})`;
    const isWritten = await query(credentials.database_url, chunk).then(
      () => true,
      () => false,
    );
    if (!isWritten) break;
    await sleep(1_500);
  }
  expect(written).toBeLessThan(WAY_BEYOND_QUOTA_MIB);
  await eventually(async () => expect(await outcomes(credentials)).toEqual(['refused', 'refused']));
  await setQuota(10 * (empty + 10 * MIB));
  await eventually(async () => expect(await outcomes(credentials)).toEqual(['in', 'in']));
  await query(credentials.direct_url, 'truncate filled');
}, 180_000);

test("row 15: data of an unrecorded tenant is saved and loaded as the branch's owner login, never as superuser", () => {
  const decision = readFileSync(join(ROOT, 'docs/decisions/reconciliation.md'), 'utf8');
  expect(decision).toMatch(/owner login/);
});
