import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { faultCases } from '../support/stack/fault-cases.ts';
import { FaultStage, mayCloneTwice } from '../support/stack/fault-stage.ts';
import {
  afterMilliseconds,
  afterReply,
  around,
  beforeRequest,
  soonAfterReply,
  soonAfterRequest,
} from '../support/stack/moments.ts';

/** A project's `main` is cloned from an empty database, which is then opened to the project's groups. */
const CASES = faultCases({
  firstVictim: 1,
  moments: [
    beforeRequest('reserve', 'branch.prepare'),
    soonAfterRequest('reserve', 8, 'branch.prepare', 'branch.clone'),
    ...around(
      'clone',
      'branch.clone',
      { table: 'branch', statement: 'INSERT INTO branch%' },
      { table: 'pg_shdepend', statement: 'CREATE DATABASE%', after: 'branch.prepare' },
      { table: 'pg_db_role_setting', statement: '%', mode: 'access exclusive', after: 'branch.prepare' },
    ),
    afterReply('finalize', 'branch.finalize'),
    soonAfterReply('activate', 'branch.prove', 0),
  ],
  nightly: afterMilliseconds('clone', 'branch.clone', 15, 30, 45),
});

let stage: FaultStage;
beforeAll(async () => {
  stage = await FaultStage.open();
});
afterAll(() => stage?.close());

test.each(CASES)('a project is created once: $victim killed $name', async ({ victim, moment }) => {
  const headers = { 'Idempotency-Key': randomUUID() };
  const begunBefore = stage.databasesBegun;

  const [one, other] = await stage.strike(victim, moment, () =>
    stage.api.post<ProjectBody>('/api/v1/projects', { name: 'Made once' }, headers),
  );

  expect(one).toMatchObject({ status: 201, body: { status: 'active', main_branch: { status: 'active' } } });
  expect(other).toMatchObject({ status: 201, body: { id: one?.body.id } });
  expect(stage.databasesBegun - begunBefore).toBeLessThanOrEqual(mayCloneTwice(victim) ? 2 : 1);
  const project = `/api/v1/projects/${one?.body.id}`;
  const branch = await stage.api.branch(String(one?.body.id), 'of-it');
  const { direct_url } = await stage.api.credentials(String(one?.body.id), branch.id);
  await query(direct_url, 'create table made_by_its_owner ()');
  await stage.api.delete(project);
});
