import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Api, ApiResponse, BranchBody, ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { dropBranch } from '../support/records/jobs.ts';
import { faultCases } from '../support/stack/fault-cases.ts';
import { FaultStage } from '../support/stack/fault-stage.ts';
import {
  afterEnd,
  afterMilliseconds,
  around,
  type Moment,
  soonAfterReply,
} from '../support/stack/moments.ts';

let stage: FaultStage;
let api: Api;
let project: ProjectBody;
let path: string;
beforeAll(async () => {
  stage = await FaultStage.open();
  ({ api } = stage);
  project = await api.project('History', { storage_quota_gib: 2 });
  path = `/api/v1/projects/${project.id}`;
  await api.allow(project.id);
  const { direct_url } = await api.credentials(project.id, 'main');
  await query(direct_url, 'create table item (id int primary key); insert into item values (1)');
});
afterAll(() => stage?.close());

const idsIn = async (ref: string) => {
  const { direct_url } = await api.credentials(project.id, ref);
  return (await query<{ id: number }>(direct_url, 'select id from item order by id')).map(({ id }) => id);
};
const insert = async (ref: string, id: number) =>
  query((await api.credentials(project.id, ref)).direct_url, `insert into item values (${id})`);
const statusesOf = (answers: ApiResponse[]) => answers.map(({ status }) => status);

/** What happens during a step always; before and after it in the nightly run. */
const of = (...parts: Moment[][]) => {
  const isDuring = ({ name }: Moment) => name.startsWith('during');
  const all = parts.flat();
  return { moments: all.filter(isDuring), nightly: all.filter((moment) => !isDuring(moment)) };
};

const TAKING = faultCases({
  firstVictim: 0,
  ...of(
    around(
      'take',
      'snapshot.take',
      { table: 'snapshot', statement: 'INSERT INTO snapshot%' },
      { table: 'pg_database', statement: 'CREATE DATABASE%' },
    ),
    [soonAfterReply('end', 'snapshot.take', 0)],
  ),
});
test.each(TAKING)(
  'a snapshot is taken whole or not at all: $victim killed $name',
  async ({ victim, moment }) => {
    const snapshots = `${path}/branches/main/snapshots`;
    const key = { 'Idempotency-Key': crypto.randomUUID() };
    const answers = await stage.strike(victim, moment, () => api.post(snapshots, {}, key));
    for (const status of statusesOf(answers)) expect([201, 202, 409]).toContain(status);
    const { body } = await api.get<{ snapshots: { id: string }[] }>(snapshots);
    expect(body.snapshots).toHaveLength(1);
    const from = { branch_name: 'of-it', snapshot_id: body.snapshots[0]?.id };
    expect((await api.post<BranchBody>(`${path}/branches`, from)).status).toBe(201);
    await dropBranch(api, project.id, 'of-it');
    await api.delete(`${path}/snapshots/${body.snapshots[0]?.id}`);
  },
);

const RESETTING = faultCases({
  firstVictim: 1,
  ...of(
    around('clone', 'reset.clone', { table: 'pg_database', statement: 'CREATE DATABASE%' }),
    around('swap', 'reset.swap', { table: 'snapshot', statement: 'INSERT INTO snapshot%' }),
    [soonAfterReply('end', 'reset.swap', 0), afterEnd('end', 'reset.swap')],
  ),
});
test.each(RESETTING)('a branch is reset once: $victim killed $name', async ({ victim, moment }) => {
  const branch = await api.branch(project.id, 'rework');
  await insert('rework', 2);
  const key = { 'Idempotency-Key': crypto.randomUUID() };
  const request = () => api.post<BranchBody>(`${path}/branches/rework/reset`, { to: 'parent' }, key);
  const answers = await stage.strike(victim, moment, request);
  for (const status of statusesOf(answers)) expect([200, 202, 409]).toContain(status);
  expect(await idsIn('rework')).toEqual([1]);
  const { body } = await api.get<{ snapshots: { id: string; kind: string }[] }>(
    `${path}/branches/${branch.id}/snapshots`,
  );
  expect(body.snapshots).toMatchObject([{ kind: 'safety' }]);
  const [safety] = body.snapshots;
  expect((await api.post(`${path}/branches/rework/reset`, { to: safety?.id })).status).toBe(200);
  expect(await idsIn('rework')).toEqual([1, 2]);
  await api.delete(`${path}/branches/rework?purge=true`);
});

const KEEPING = faultCases({
  firstVictim: 2,
  ...of(
    around(
      'keep',
      'branch.keep',
      { table: 'login', statement: 'DELETE FROM login%' },
      { table: 'snapshot', statement: 'INSERT INTO snapshot%' },
      { table: 'branch', statement: 'DELETE FROM branch%' },
    ),
    [soonAfterReply('end', 'branch.keep', 0)],
  ),
});
test.each(KEEPING)('a deleted branch is kept: $victim killed $name', async ({ victim, moment }) => {
  const branch = await api.branch(project.id, 'oops');
  await insert('oops', 3);
  const answers = await stage.strike(victim, moment, () => api.delete(`${path}/branches/oops`));
  for (const status of statusesOf(answers)) expect([202, 404]).toContain(status);
  const restored = await api.post<BranchBody>(`${path}/branches/${branch.id}/restore`, {});
  expect(restored).toMatchObject({ status: 200, body: { id: branch.id } });
  expect(await idsIn('oops')).toEqual([1, 3]);
  await api.delete(`${path}/branches/oops?purge=true`);
});

const RESTORING = faultCases({
  firstVictim: 3,
  ...of(
    around('clone', 'branch.clone', { table: 'pg_database', statement: 'CREATE DATABASE%' }),
    [soonAfterReply('end', 'branch.prove', 0)],
    around('drop', 'snapshot.drop', { table: 'snapshot', statement: 'DELETE FROM snapshot%' }),
  ),
});
test.each(RESTORING)('a branch is restored once: $victim killed $name', async ({ victim, moment }) => {
  const branch = await api.branch(project.id, 'back');
  await insert('back', 4);
  await dropBranch(api, project.id, 'back');
  const answers = await stage.strike(victim, moment, () =>
    api.post<BranchBody>(`${path}/branches/${branch.id}/restore`, {}),
  );
  for (const status of statusesOf(answers)) expect([200, 202, 404, 409]).toContain(status);
  expect(await idsIn('back')).toEqual([1, 4]);
  await api.delete(`${path}/branches/back?purge=true`);
});

const CANARY = 'ada@example.com';
const emailsAt = async (url: string) =>
  (await query<{ email: string }>(url, 'select email from customer')).map(({ email }) => email);

const MASKING = faultCases({
  firstVictim: 1,
  ...of(
    around(
      'mask',
      'snapshot.mask',
      { table: 'snapshot', statement: 'INSERT INTO snapshot%' },
      // What a killed call has left is dropped before, which uses pg_database too.
      { table: 'pg_shdepend', statement: 'CREATE DATABASE%' },
      { table: 'pg_authid', statement: 'CREATE ROLE%' },
      { table: 'snapshot', statement: 'UPDATE snapshot%' },
    ),
    afterMilliseconds('mask', 'snapshot.mask', 700),
    around('clone', 'branch.clone', { table: 'pg_database', statement: 'CREATE DATABASE%' }),
    around('publish', 'branch.finalize'),
    [soonAfterReply('end', 'branch.prove', 0)],
  ),
});
test.each(MASKING)(
  'a masked branch is never seen unmasked, and its snapshot is made once: $victim killed $name',
  async ({ victim, moment }) => {
    const { direct_url } = await api.credentials(project.id, 'main');
    await query(
      direct_url,
      `create table if not exists customer (id int primary key, email text);
       insert into customer values (1, '${CANARY}') on conflict do nothing`,
    );
    const rules = [{ table: 'customer', column: 'email', with: 'email' }];
    await api.call('PUT', `${path}/masking`, { body: { rules, unlisted: 'keep' } });
    const seen = new Set<string>();
    const state = { isOver: false };
    const watching = (async () => {
      while (!state.isOver) {
        const read = api.credentials(project.id, 'veiled').then((found) => emailsAt(found.direct_url));
        for (const email of await read.catch(() => [])) seen.add(email);
        await sleep(50);
      }
    })();
    const key = { 'Idempotency-Key': crypto.randomUUID() };
    const wanted = { branch_name: 'veiled', data: 'masked' };
    const answers = await stage
      .strike(victim, moment, () => api.post<BranchBody>(`${path}/branches`, wanted, key))
      .finally(() => {
        state.isOver = true;
      });
    await watching;
    for (const status of statusesOf(answers)) expect([201, 202, 409]).toContain(status);
    const branch = await api.get<BranchBody>(`${path}/branches/veiled`);
    expect(branch.body).toMatchObject({ status: 'active', data: 'masked', masking_version: 1 });
    const later = await api.branch(project.id, 'veiled-2', { data: 'masked' });
    for (const ref of ['veiled', later.id]) {
      const [email, ...others] = await emailsAt((await api.credentials(project.id, ref)).direct_url);
      expect(others).toEqual([]);
      expect(email).toMatch(/^[a-z]{20}@example\.com$/);
      seen.add(email ?? '');
    }
    expect(seen.size).toBe(1);
    const { body } = await api.get<{ snapshots: { id: string; kind: string }[] }>(
      `${path}/branches/main/snapshots`,
    );
    expect(body.snapshots).toMatchObject([{ kind: 'masked' }]);
    for (const name of ['veiled', 'veiled-2']) await api.delete(`${path}/branches/${name}?purge=true`);
    for (const { id } of body.snapshots) await api.delete(`${path}/snapshots/${id}`);
  },
);
