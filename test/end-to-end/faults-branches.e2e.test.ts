import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { Method } from '../../shared/protocol/operations.ts';
import { type ApiResponse, type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { connect, type Fingerprint, fingerprint, query } from '../support/database.ts';
import { fillLedger } from '../support/load.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';
import { deletionCases, faultCases } from '../support/stack/fault-cases.ts';
import { FaultStage, insist, mayCloneTwice } from '../support/stack/fault-stage.ts';
import {
  afterEnd,
  afterMilliseconds,
  afterReply,
  around,
  asCopyBegins,
  beforeCall,
  beforeRequest,
  duringCopy,
  soonAfterReply,
  soonAfterRequest,
} from '../support/stack/moments.ts';

const SAMPLE = join(import.meta.dirname, '../support/sample.sql');

let stage: FaultStage;
beforeAll(async () => {
  stage = await FaultStage.open();
});
afterAll(() => stage?.close());

/** Moments of a creation until its logins are made. */
const RESERVED_AND_PREPARED = [
  beforeRequest('reserve', 'branch.prepare'),
  soonAfterRequest('reserve', 8, 'branch.prepare', 'branch.clone'),
  ...around(
    'prepare',
    'branch.prepare',
    { table: 'branch', statement: 'INSERT INTO branch%' },
    { table: 'login', statement: 'CREATE ROLE%' },
    { table: 'project', statement: 'INSERT INTO project%' },
  ),
];

describe('a branch that is created', () => {
  /**
   * Large enough to be cloned file by file where there is no reflink, which takes some hundred milliseconds.
   */
  const LARGE_MB = 64;

  /** Every moment at which a part is killed while a small branch is created. */
  const SMALL = faultCases({
    firstVictim: 0,
    moments: [
      ...RESERVED_AND_PREPARED,
      beforeCall('clone', 'branch.clone'),
      duringCopy('clone', 5),
      ...around(
        'finalize',
        'branch.finalize',
        { table: 'pg_shdepend', statement: 'ALTER DATABASE%' },
        { table: 'branch_usage', statement: 'ALTER DATABASE%' },
      ),
      ...around(
        'prove',
        'branch.prove',
        { table: 'pg_db_role_setting', statement: '%', mode: 'access exclusive' },
        { table: 'branch_usage', statement: 'UPDATE branch_usage%' },
      ),
      soonAfterReply('activate', 'branch.prove', 0),
      afterEnd('activate', 'branch.prove'),
    ],
    nightly: [
      ...afterMilliseconds('prepare', 'branch.prepare', 3, 10, 20),
      ...afterMilliseconds('finalize', 'branch.finalize', 0, 1),
      ...afterMilliseconds('prove', 'branch.prove', 1, 4),
    ],
  });
  const LARGE = faultCases({
    firstVictim: 2,
    moments: [asCopyBegins('clone'), afterReply('clone', 'branch.clone')],
    nightly: [duringCopy('clone', 40)],
  });
  const CASES = [
    ...SMALL.map((each) => ({ ...each, size: 'small' as const })),
    ...LARGE.map((each) => ({ ...each, size: 'large' as const })),
  ];

  const sources = {} as Record<'small' | 'large', { project: ProjectBody; content: Fingerprint }>;

  beforeAll(async () => {
    const fill = {
      small: (url: string) => query(url, readFileSync(SAMPLE, 'utf8')),
      large: (url: string) => fillLedger(url, LARGE_MB),
    };
    for (const size of ['small', 'large'] as const) {
      const project = await stage.api.project(`Faults ${size}`);
      await stage.api.allow(project.id);
      const { direct_url } = await stage.api.credentials(project.id, 'main');
      await fill[size](direct_url);
      sources[size] = { project, content: await fingerprint(direct_url) };
    }
    await stage.checkpoint();
  });

  /** Each case begins without the branches of the one before. */
  afterEach(async () => {
    for (const { project } of Object.values(sources)) {
      const path = `/api/v1/projects/${project.id}/branches`;
      const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
      for (const { id, is_default } of body.branches)
        if (!is_default) await stage.api.delete(`${path}/${id}`);
    }
    await stage.atRest();
  });

  test.each(CASES)('a branch is created once: $victim killed $name', async ({ victim, moment, size }) => {
    const { project, content } = sources[size];
    const path = `/api/v1/projects/${project.id}/branches`;
    const branch_name = 'same-name';
    const headers = { ...FROM_LOOPBACK, 'Idempotency-Key': randomUUID() };
    const begunBefore = stage.databasesBegun;

    const [one, other] = await stage.strike(victim, moment, () =>
      stage.api.post<BranchBody>(path, { branch_name }, headers),
    );

    expect(one).toMatchObject({ status: 201, body: { branch_name, status: 'active' } });
    expect(other).toMatchObject({ status: 201, body: one?.body ?? {} });
    const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
    expect(body.branches.map(({ id }) => id)).toEqual([project.main_branch.id, one?.body.id]);
    // Only a clone that the end of its server interrupted is begun again.
    expect(stage.databasesBegun - begunBefore).toBeLessThanOrEqual(mayCloneTwice(victim) ? 2 : 1);
    const credentials = await stage.api.credentials(project.id, branch_name);
    expect(await query(credentials.database_url, 'select current_database() as name')).toEqual([
      { name: credentials.database },
    ]);
    expect(await fingerprint(credentials.direct_url)).toEqual(content);
  });
});

describe('a batch that is created', () => {
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
          ...RESERVED_AND_PREPARED,
          ...afterMilliseconds('prepare', 'branch.prepare', 10, 40),
          ...afterMilliseconds('clone', 'branch.clone', 20, 80, 300),
          ...around('finalize', 'branch.finalize', { table: 'pg_shdepend', statement: 'ALTER DATABASE%' }),
          ...afterMilliseconds('finalize', 'branch.finalize', 5, 20),
          ...around('prove', 'branch.prove', { table: 'branch_usage', statement: 'UPDATE branch_usage%' }),
          afterEnd('activate', 'branch.prove'),
        ],
      })
    : [];

  let project: ProjectBody;
  let content: Fingerprint;
  const path = () => `/api/v1/projects/${project.id}/branches`;
  const list = async () => (await stage.api.get<{ branches: BranchBody[] }>(path())).body.branches;

  beforeAll(async () => {
    project = await stage.api.project('Faults of batches');
    await stage.api.allow(project.id);
    const { direct_url } = await stage.api.credentials(project.id, 'main');
    await query(direct_url, readFileSync(SAMPLE, 'utf8'));
    content = await fingerprint(direct_url);
    await stage.checkpoint();
  });

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
});

/** Long enough for a faulty host to begin a second clone. */
const SECOND_CLONE_MS = 300;

/** A creation whose clone PostgreSQL continues when the agent or the gateway dies. */
async function slowCreation(send: typeof insist<BranchBody>) {
  const project = await stage.api.project('Orphaned');
  const path = `/api/v1/projects/${project.id}/branches`;
  const headers = { 'Idempotency-Key': randomUUID() };
  const begunBefore = stage.databasesBegun;
  const release = await stage.holdCopies();
  const created = send(() => stage.api.post<BranchBody>(path, { branch_name: 'orphaned' }, headers));
  await stage.copyHeld();
  return {
    created,
    begun: () => stage.databasesBegun - begunBefore,
    branches: async () => (await stage.api.get<{ branches: BranchBody[] }>(path)).body.branches,
    remove: (id = '') => stage.api.delete(`${path}/${id}`),
    /**
     * Releases PostgreSQL after the gateway has called one of these and the host has had time for a second
     * clone.
     */
    releaseAfter: (...methods: Method[]) =>
      Promise.race(methods.map((method) => stage.nextCall(method)))
        .then(() => sleep(SECOND_CLONE_MS))
        .then(release)
        .then(() => null),
  };
}

test.each(firstByDay(1, ['agent', 'gateway'] as const))(
  'a clone that outlives the %s is adopted',
  async (victim) => {
    const { created, begun, branches, releaseAfter } = await slowCreation(insist);

    const [, answer] = await stage.crash([victim], () => [releaseAfter('branch.clone'), created]);

    expect(answer).toMatchObject({ status: 201 });
    expect(begun()).toBe(1);
    expect((await branches()).map(({ id }) => id)).toEqual([expect.any(String), answer?.body.id]);
  },
);

test.each(firstByDay(1, ['gateway', 'agent'] as const))(
  'a clone that outlives the %s goes with its branch',
  async (victim) => {
    // The client sends it once: a repeated request would create the branch again.
    const { created, begun, branches, remove, releaseAfter } = await slowCreation((request) => request());
    created.catch(() => {});
    const [, branch] = await branches();

    const [, answer] = await stage.crash([victim], () => [
      // The creation may be resumed before the deletion arrives, which then waits for it.
      releaseAfter('branch.drop', 'branch.clone'),
      insist(() => remove(branch?.id)),
    ]);

    expect(answer).toMatchObject({ status: 202 });
    expect(begun()).toBe(1);
    expect(await branches()).toHaveLength(1);
  },
);

test('a deletion overtakes a creation: neither its branch nor its event remains', async () => {
  const project = await stage.api.project('Overtaken');
  const path = `/api/v1/projects/${project.id}/branches`;
  let created = Promise.resolve<ApiResponse<BranchBody> | null>(null);
  await stage.reach(afterReply('prove', 'branch.prove'), () => {
    created = stage.api.post<BranchBody>(path, { branch_name: 'overtaken' });
    return created;
  });
  const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
  const deletion = await stage.api.delete(`${path}/${body.branches[1]?.id}`);

  const [answer] = await stage.crash([], () => [created]);

  expect(deletion).toMatchObject({ status: 202 });
  expect(answer).toMatchObject({ status: 404 });
});

/** For the second client, and for a first one whose response was lost, it is deleted already. */
const DELETED = [202, 404];

test.each(deletionCases('branch.drop', 'branch', 2))(
  'a branch is deleted once: $victim killed $name',
  async ({ victim, moment }) => {
    const project = await stage.api.project('Branch deleted');
    const branch = await stage.api.branch(project.id, 'doomed');
    const begunBefore = stage.databasesBegun;
    const path = `/api/v1/projects/${project.id}/branches`;

    const answers = await stage.strike(victim, moment, () =>
      stage.api.delete(`${path}/${branch.id}?purge=true`),
    );

    for (const { status } of answers) expect(DELETED).toContain(status);
    const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
    expect(body.branches.map(({ id }) => id)).toEqual([project.main_branch.id]);
    expect(stage.databasesBegun).toBe(begunBefore);
  },
);
