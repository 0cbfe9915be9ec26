import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { deletionCases, faultCases } from '../support/stack/fault-cases.ts';
import { FaultStage, mayCloneTwice } from '../support/stack/fault-stage.ts';
import {
  afterMilliseconds,
  afterReply,
  around,
  beforeRequest,
  soonAfterReply,
  soonAfterRequest,
} from '../support/stack/moments.ts';

let stage: FaultStage;
beforeAll(async () => {
  stage = await FaultStage.open();
});
afterAll(() => stage?.close());

/** A project's `main` is cloned from an empty database, which is then opened to the project's groups. */
const CREATIONS = faultCases({
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

test.each(CREATIONS)('a project is created once: $victim killed $name', async ({ victim, moment }) => {
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

/**
 * For the second client, and for a first one whose response was lost, it is being deleted or deleted already.
 */
const DELETED = [202, 404, 409];

test.each(deletionCases('project.drop', 'project', 4))(
  'a project is deleted once: $victim killed $name',
  async ({ victim, moment }) => {
    const project = await stage.api.project('Project deleted');
    await stage.api.branch(project.id, 'doomed');

    const answers = await stage.strike(victim, moment, () =>
      stage.api.delete(`/api/v1/projects/${project.id}`),
    );

    for (const { status } of answers) expect(DELETED).toContain(status);
    expect(await stage.api.get(`/api/v1/projects/${project.id}`)).toMatchObject({ status: 404 });
  },
);
