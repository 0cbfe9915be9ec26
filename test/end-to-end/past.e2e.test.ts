import { rmSync } from 'node:fs';
import { AxeBuilder } from '@axe-core/playwright';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createClient } from '../../client/client.ts';
import { resetPreviewOf } from '../../client/difference.ts';
import { Api, type BranchBody, type ProjectBody } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { openBrowser, visit } from '../support/console/browser.ts';
import { signInOnPage } from '../support/console/person.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { deliveredMails } from '../support/sign-in/mails.ts';
import { newOwner } from '../support/sign-in/people.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

interface Recoverable {
  from: string;
  until: string;
}

let stack: Stack;
let api: Api;
let project: ProjectBody;
let path: string;
let mainUrl: string;
let cli: CommandLine;

beforeAll(async () => {
  stack = await startStack({ env: { RECOVERY_WINDOW_HOURS: '24', MIN_FREE_DISK_MB: '16' } });
  api = new Api(stack.url, await stack.token());
  project = await api.project('Past', { storage_quota_gib: 2 });
  path = `/api/v1/projects/${project.id}`;
  await api.allow(project.id);
  mainUrl = (await api.credentials(project.id, 'main')).direct_url;
  cli = await CommandLine.open({
    BRANCHGATE_URL: stack.url,
    BRANCHGATE_PROJECT: project.id,
    BRANCHGATE_TOKEN: await stack.token(),
  });
  await query(mainUrl, 'create table item (id int primary key, email text)');
});

afterAll(async () => {
  if (cli) rmSync(cli.folder, { recursive: true, force: true });
  await stack?.stop();
});

const windowNow = async () => (await api.get<{ recoverable: Recoverable | null }>(path)).body.recoverable;
const now = async () =>
  (
    await query<{ at: string }>(
      mainUrl,
      `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at`,
    )
  )[0]?.at ?? '';
/** A time in UTC, as a clock two hours ahead shows it. */
function inZone(time: string): string {
  const [, fraction = ''] = /(\.\d+)Z$/.exec(time) ?? [];
  return `${new Date(Date.parse(time) + 7_200_000).toISOString().slice(0, 19)}${fraction}+02:00`;
}
const idsOf = async (ref: string) => {
  const url = (await api.credentials(project.id, ref)).direct_url;
  return (await query<{ id: number }>(url, 'select id from item order by id')).map(({ id }) => id);
};
const preview = async (branch_ref: string, at: string) =>
  resetPreviewOf(
    createClient({ url: stack.url, token: await stack.token() }),
    { project_id: project.id, branch_ref },
    { at },
  );
const create = (body: object) =>
  api.post<BranchBody & { details?: unknown } & Recoverable>(`${path}/branches`, body);
const reset = (ref: string, body: object) => api.post<BranchBody>(`${path}/branches/${ref}/reset`, body);

test('a branch, a masked branch and a reset have what was there at a second of the past', async () => {
  await eventually(async () => expect(await windowNow()).not.toBeNull());
  await query(mainUrl, "insert into item values (1, 'one@example.com')");
  const first = await now();
  await query(mainUrl, "insert into item values (2, 'two@example.com')");
  const second = await now();
  await query(mainUrl, 'delete from item');

  const before = await cli.json('branch', 'create', 'before', '--at', inZone(first));
  expect(before).toMatchObject({ data: 'full', parent_branch_id: project.main_branch.id });
  expect(await idsOf('before')).toEqual([1]);
  expect((await api.get<{ snapshots: unknown[] }>(`${path}/snapshots`)).body.snapshots).toEqual([]);

  await api.call('PUT', `${path}/masking`, {
    body: { rules: [{ table: 'item', column: 'email', with: 'email' }] },
  });
  expect(await create({ branch_name: 'masked', at: second, data: 'masked' })).toMatchObject({
    status: 201,
    body: { data: 'masked' },
  });
  const maskedUrl = (await api.credentials(project.id, 'masked')).direct_url;
  const masked = await query<{ id: number; email: string }>(maskedUrl, 'select * from item order by id');
  expect(masked.map(({ id }) => id)).toEqual([1, 2]);
  expect(masked.map(({ email }) => email)).not.toContain('one@example.com');

  await query(mainUrl, "insert into item values (3, 'three@example.com')");
  expect(await preview('main', second)).toMatchObject({
    at: second,
    rows: { tables: [{ name: 'item', inserted: 1, updated: 0, deleted: 2 }] },
  });
  expect((await api.get<{ snapshots: unknown[] }>(`${path}/snapshots`)).body.snapshots).toEqual([]);

  expect(await reset('main', { to: 'time', at: second })).toMatchObject({ status: 403 });
  const undone = await cli.json('branch', 'reset', 'main', '--at', second, '--confirm', 'main');
  expect(undone).toMatchObject({ safety_snapshot_id: expect.any(String) });
  expect(await idsOf('main')).toEqual([1, 2]);
  await reset('main', { to: undone.safety_snapshot_id, confirm: 'main' });
  expect(await idsOf('main')).toEqual([3]);

  const listed = await api.get<{ audit_events: { name: string; metadata: object }[] }>(
    `/api/v1/audit-events?project_id=${project.id}&name=branch.recovered`,
  );
  const recovered = listed.body.audit_events.map(({ metadata }) => metadata);
  expect(recovered.toReversed()).toMatchObject([
    { branch_name: 'before', source_branch_id: project.main_branch.id, at: first },
    { branch_name: 'masked', at: second },
    { branch_name: 'main', at: second },
  ]);
});

test('a bisection finds the transaction after which a check fails', async () => {
  await query(mainUrl, 'create table invoice (id int primary key, total int not null)');
  const good = await now();
  const before: string[] = [];
  for (let id = 1; id <= 12; id += 1) {
    if (id === 8) before.push(await now());
    await query(mainUrl, `insert into invoice values (${id}, ${id === 8 ? -5 : 5})`);
    if (id === 8) before.push(await now());
    // Other tables change too, and their commits are probed.
    await query(mainUrl, `insert into item values (${100 + id}, 'later')`);
  }
  const check = ['psql', '-X', '-At', '-c', 'select count(*) = 0 from invoice where total < 0'];
  const { stdout, stderr } = await cli.run(
    ...['bisect', '--good', inZone(good), '--bad', await now(), '--diff', '--json', '--'],
    ...check,
  );
  expect(stdout, stderr).not.toBe('');
  const found: { committed_at: string; probes: number } = JSON.parse(stdout);
  const [from = '', until = ''] = before;
  expect(found.committed_at >= from && found.committed_at <= until).toBe(true);
  expect(found).toMatchObject({
    tables: ['public.invoice'],
    changes: [{ name: 'invoice', inserted: 1, updated: 0, deleted: 0 }],
  });
  // Two dozen commits, and those of the host itself.
  expect(found.probes).toBeLessThanOrEqual(14);
  // Exit codes that are no verdicts, as for `git bisect run`.
  for (const [code, message] of [
    [125, 'skips every commit that is left'],
    [200, 'has ended with exit code 200'],
  ] as const) {
    const ended = await cli.run(
      ...['bisect', '--good', from, '--bad', until, '--', 'sh', '-c', `exit ${code}`],
    );
    expect(ended.code).not.toBe(0);
    expect(ended.stderr).toContain(message);
  }
  const { branches } = (await api.get<{ branches: BranchBody[] }>(`${path}/branches`)).body;
  expect(branches.filter(({ branch_name }) => branch_name.startsWith('bisect'))).toEqual([]);
});

test('a time outside of the window and impossible requests make nothing', async () => {
  const window = await windowNow();
  const early = await create({ branch_name: 'early', at: '2020-01-01T00:00:00Z' });
  expect(early).toMatchObject({ status: 422, body: { error: 'TIME_NOT_RECOVERABLE', from: window?.from } });
  for (const body of [
    { at: new Date(Date.now() + 3_600_000).toISOString() },
    { at: 'yesterday' },
    { at: window?.from, from: 'latest_snapshot' },
    { at: window?.from, on_exists: 'return' },
    { at: window?.from, snapshot_id: crypto.randomUUID() },
  ])
    expect(await create({ branch_name: 'wrong', ...body })).toMatchObject({
      status: 422,
      body: { error: 'VALIDATION_FAILED' },
    });
  for (const body of [{ to: 'time' }, { to: 'parent', at: window?.from }])
    expect(await reset('before', body)).toMatchObject({ status: 422 });
  await expect(preview('main', '2020-01-01T00:00:00Z')).rejects.toMatchObject({
    code: 'TIME_NOT_RECOVERABLE',
  });
  const { branches } = (await api.get<{ branches: BranchBody[] }>(`${path}/branches`)).body;
  expect(branches.map(({ branch_name }) => branch_name)).not.toContain('early');
});

const DRILL = {
  drilled_at: '2026-11-22T03:00:00.000000Z',
  at: '2026-11-21T17:12:44.120000Z',
  duration_ms: 2345,
  tables: 3,
  rows: 300,
};

test('the console shows the time line, the drills, and what a reset to a time would lose', async () => {
  const site = { url: stack.url, mails: () => deliveredMails(stack) };
  const owner = await newOwner(site, 'past@example.org');
  const shop = await owner.api.project('Shop');
  await owner.api.allow(shop.id);
  const url = (await owner.api.credentials(shop.id, 'main')).direct_url;
  await query(url, 'create table item (id int primary key, name text)');
  await query(url, "insert into item values (1, 'kept'), (2, 'lost'), (3, 'changed')");
  const [clock] = await query<{ second: string }>(
    url,
    `select to_char(clock_timestamp() at time zone 'UTC' + interval '1 second', 'YYYY-MM-DD"T"HH24:MI:SS') as second`,
  );
  const second = clock?.second ?? '';
  await query(url, 'select pg_sleep(1.01)');
  await query(
    url,
    "delete from item where id = 2; update item set name = 'wrong' where id = 3; insert into item values (4)",
  );
  await owner.api.post(`/api/v1/projects/${shop.id}/branches/main/snapshots`, { name: 'after' });
  const browser = await openBrowser();
  try {
    const { page, problems } = await visit(browser, stack.url, { timezoneId: 'UTC' });
    await signInOnPage(page, owner.email);
    const drills = '**/recovery-drills';
    const shown = [
      { ...DRILL, id: crypto.randomUUID(), passed: false, problem: 'log_unreadable' },
      { ...DRILL, id: crypto.randomUUID(), passed: true, problem: null },
    ];
    await page.goto(`/projects/${shop.id}/recoveries`);
    await page.getByText('No drill yet').waitFor();
    await page.route(drills, (route) => route.fulfill({ json: { drills: shown, overdue: true } }));
    await page.reload();
    await page.getByRole('heading', { name: /^Any second since / }).waitFor();
    await page.getByText('No drill has passed for two weeks.').waitFor();
    const failed = page.getByRole('row', { name: /Failed/ });
    await failed.getByText('The log since then does not lead to the time.').waitFor();
    await page.getByRole('row', { name: /Passed/ }).waitFor();
    const mark = page.getByRole('row', { name: /Snapshot: after/ });
    await mark.waitFor();
    expect(await page.locator('.time-line span').count()).toBe(1);
    const { violations } = await new AxeBuilder({ page }).setLegacyMode(true).analyze();
    expect(violations.map(({ id }) => id)).toEqual([]);
    await mark.getByRole('link', { name: 'Branch from before' }).click();
    // A browser leaves out the second 0.
    await eventually(async () =>
      expect(await page.getByLabel('As it was at').inputValue()).toMatch(
        /^20\d\d-\d\d-\d\dT\d\d:\d\d(:\d\d)?$/,
      ),
    );

    await page.goto(`/projects/${shop.id}`);
    await page.getByRole('button', { name: 'Actions of main' }).click();
    await page.getByRole('menuitem', { name: 'Reset' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('To the content of').selectOption('an earlier time');
    await dialog.getByLabel('As it was at').fill(second);
    await dialog.getByLabel('Type main to confirm').fill('main');
    const action = dialog.getByRole('button', { name: 'Reset', exact: true });
    // Not before it has shown what would be lost.
    expect(await action.isDisabled()).toBe(true);
    await dialog.getByRole('button', { name: 'Show what would be lost' }).click();
    await dialog.getByRole('row', { name: 'public.item 1 1 1' }).waitFor();
    await dialog.getByText(`branchgate branch reset main --at ${second}`).waitFor();
    await action.click();
    await page.getByText('main is reset. What it held is the snapshot “Before a reset').last().waitFor();
    expect(await query(url, 'select name from item order by id')).toEqual(
      ['kept', 'lost', 'changed'].map((name) => ({ name })),
    );
    await page.goto(`/projects/${shop.id}/recoveries`);
    await page.getByRole('row', { name: /Reset main/ }).waitFor();
    expect(problems).toEqual([]);
  } finally {
    await browser.close();
  }
});

test('what is purged says until when its host has its data, and nobody recovers it', async () => {
  const at = await now();
  const drop = (ref: string, query = '') =>
    api.call<{ recoverable_until: string | null }>('DELETE', `${path}/branches/${ref}${query}`);
  const { body: masked } = await api.get<BranchBody>(`${path}/branches/masked`);
  expect((await drop('masked')).body.recoverable_until).toBeNull();
  // The job of the deletion keeps the database first.
  const purged = await eventually(async () => {
    const response = await drop(masked.id, '?purge=true');
    expect(response.status).toBe(202);
    return response;
  });
  expect(Date.parse(purged.body.recoverable_until ?? '')).toBeGreaterThan(Date.now() + 24 * 3_600_000);
  expect(await create({ branch_name: 'again', source_branch_id: masked.id, at })).toMatchObject({
    status: 404,
    body: { error: 'NOT_FOUND' },
  });
  expect((await api.get(`${path}/recovery-drills`)).body).toMatchObject({ overdue: false });
  const { body } = await api.call<{ recoverable_until: string }>('DELETE', path);
  expect(Date.parse(body.recoverable_until)).toBeGreaterThan(Date.now() + 24 * 3_600_000);
});
