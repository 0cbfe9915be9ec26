import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { connect, type Fingerprint, fingerprint, query } from '../support/database.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { faultCases } from '../support/stack/fault-cases.ts';
import { FaultStage, mayCloneTwice } from '../support/stack/fault-stage.ts';
import {
  afterEnd,
  afterMilliseconds,
  around,
  beforeRequest,
  soonAfterReply,
  soonAfterRequest,
} from '../support/stack/moments.ts';

const SAMPLE = join(import.meta.dirname, '../support/sample.sql');
const NAMES = ['batch-1', 'batch-2', 'batch-3'];

/** The moments that differ from those of a single creation; the others are struck every night. */
const SHORT = faultCases({
  firstVictim: 0,
  moments: [
    ...around('clone', 'branch.clone', { table: 'pg_shdepend', statement: 'CREATE DATABASE%' }),
    ...afterMilliseconds('clone', 'branch.clone', 150),
    ...around('finalize', 'branch.finalize', { table: 'branch_usage', statement: 'ALTER DATABASE%' }).slice(
      1,
      2,
    ),
    soonAfterReply('activate', 'branch.prove', 0),
  ],
});
const LONG = IS_NIGHTLY
  ? faultCases({
      firstVictim: 0,
      moments: [
        beforeRequest('reserve', 'branch.prepare'),
        soonAfterRequest('reserve', 8, 'branch.prepare', 'branch.clone'),
        ...around(
          'prepare',
          'branch.prepare',
          { table: 'branch', statement: 'INSERT INTO branch%' },
          { table: 'login', statement: 'CREATE ROLE%' },
          { table: 'project', statement: 'INSERT INTO project%' },
        ),
        ...afterMilliseconds('prepare', 'branch.prepare', 10, 40),
        ...afterMilliseconds('clone', 'branch.clone', 20, 80, 300),
        ...around('finalize', 'branch.finalize', { table: 'pg_shdepend', statement: 'ALTER DATABASE%' }),
        ...afterMilliseconds('finalize', 'branch.finalize', 5, 20),
        ...around('prove', 'branch.prove', { table: 'branch_usage', statement: 'UPDATE branch_usage%' }),
        afterEnd('activate', 'branch.prove'),
      ],
    })
  : [];

let stage: FaultStage;
let project: ProjectBody;
let content: Fingerprint;
const path = () => `/api/v1/projects/${project.id}/branches`;
const list = async () => (await stage.api.get<{ branches: BranchBody[] }>(path())).body.branches;

beforeAll(async () => {
  stage = await FaultStage.open();
  project = await stage.api.project('Faults of batches');
  await stage.api.allow(project.id);
  const { direct_url } = await stage.api.credentials(project.id, 'main');
  await query(direct_url, readFileSync(SAMPLE, 'utf8'));
  content = await fingerprint(direct_url);
  await stage.checkpoint();
});
afterAll(() => stage?.close());

/** Each case begins without the branches of the one before. */
afterEach(async () => {
  for (const { id, is_default } of await list()) if (!is_default) await stage.api.delete(`${path()}/${id}`);
  await stage.atRest();
});

test.each([...SHORT, ...LONG])(
  'a batch is created once, all of it: $victim killed $name',
  async ({ victim, moment }) => {
    const headers = { ...FROM_LOOPBACK, 'Idempotency-Key': randomUUID() };
    const begunBefore = stage.databasesBegun;

    const [one, other] = await stage.strike(victim, moment, () =>
      stage.api.post<{ branches: BranchBody[] }>(`${path()}/batch`, { names: NAMES }, headers),
    );

    expect(one?.status, JSON.stringify(one?.body)).toBe(201);
    expect(other).toMatchObject({ status: 201, body: one?.body ?? {} });
    const made = one?.body.branches ?? [];
    expect(made.map(({ branch_name, status }) => [branch_name, status])).toEqual(
      NAMES.map((name) => [name, 'active']),
    );
    expect((await list()).map(({ id }) => id).sort()).toEqual(
      [project.main_branch.id, ...made.map(({ id }) => id)].sort(),
    );
    expect(stage.databasesBegun - begunBefore).toBeLessThanOrEqual(
      NAMES.length + (mayCloneTwice(victim) ? 1 : 0),
    );
    for (const { id } of made) {
      const { direct_url, database_url } = await stage.api.credentials(project.id, id);
      expect(await fingerprint(direct_url)).toEqual(content);
      expect(await query(database_url, 'select 1 as one')).toEqual([{ one: 1 }]);
    }
  },
);

test.runIf(IS_NIGHTLY)('a batch whose source is busy leaves nothing', async () => {
  const { direct_url } = await stage.api.credentials(project.id, 'main');
  const session = await connect(direct_url);
  await session.query('begin; create table uncommitted ()');
  const refused = await stage.api.post(`${path()}/batch`, { names: NAMES }, FROM_LOOPBACK);
  await session.end();
  expect(refused).toMatchObject({ status: 409, body: { error: 'SOURCE_BUSY' } });
  expect((await list()).map(({ id }) => id)).toEqual([project.main_branch.id]);
});
