import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { Method } from '../../shared/protocol/operations.ts';
import {
  type Api,
  type ApiResponse,
  type BranchBody,
  FROM_LOOPBACK,
  type ProjectBody,
} from '../support/api.ts';
import { connect, type Fingerprint, fingerprint, query } from '../support/database.ts';
import { fillLedger } from '../support/load.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { dropBranch } from '../support/records/jobs.ts';
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
  type Moment,
  soonAfterReply,
  soonAfterRequest,
} from '../support/stack/moments.ts';

const SAMPLE = join(import.meta.dirname, '../support/sample.sql');

let stage: FaultStage;
let api: Api;
beforeAll(async () => {
  stage = await FaultStage.open();
  ({ api } = stage);
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
    byDay: [8, 'gateway'],
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
    moments: [asCopyBegins('clone'), duringCopy('clone', 40), afterReply('clone', 'branch.clone')],
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
    for (const size of new Set(CASES.map(({ size }) => size))) {
      const project = await api.project(`Faults ${size}`);
      await api.allow(project.id);
      const { direct_url } = await api.credentials(project.id, 'main');
      await fill[size](direct_url);
      sources[size] = { project, content: await fingerprint(direct_url) };
    }
    await stage.checkpoint();
  });

  /** Each case begins without the branches of the one before. */
  afterEach(async () => {
    for (const { project } of Object.values(sources)) {
      const path = `/api/v1/projects/${project.id}/branches`;
      const { body } = await api.get<{ branches: BranchBody[] }>(path);
      for (const { id, is_default } of body.branches) if (!is_default) await api.delete(`${path}/${id}`);
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
      api.post<BranchBody>(path, { branch_name }, headers),
    );

    expect(one).toMatchObject({ status: 201, body: { branch_name, status: 'active' } });
    expect(other).toMatchObject({ status: 201, body: one?.body ?? {} });
    const { body } = await api.get<{ branches: BranchBody[] }>(path);
    expect(body.branches.map(({ id }) => id)).toEqual([project.main_branch.id, one?.body.id]);
    // Only a clone that the end of its server interrupted is begun again.
    expect(stage.databasesBegun - begunBefore).toBeLessThanOrEqual(mayCloneTwice(victim) ? 2 : 1);
    const credentials = await api.credentials(project.id, branch_name);
    expect(await query(credentials.database_url, 'select current_database() as name')).toEqual([
      { name: credentials.database },
    ]);
    expect(await fingerprint(credentials.direct_url)).toEqual(content);
  });
});

describe('a batch that is created', () => {
  const NAMES = ['batch-1', 'batch-2', 'batch-3'];

  const CASES = faultCases({
    byDay: [1, 'postgres'],
    moments: [
      ...around('clone', 'branch.clone', { table: 'pg_shdepend', statement: 'CREATE DATABASE%' }),
      ...RESERVED_AND_PREPARED,
      ...around(
        'finalize',
        'branch.finalize',
        { table: 'pg_shdepend', statement: 'ALTER DATABASE%' },
        { table: 'branch_usage', statement: 'ALTER DATABASE%' },
      ),
      ...around('prove', 'branch.prove', { table: 'branch_usage', statement: 'UPDATE branch_usage%' }),
      soonAfterReply('activate', 'branch.prove', 0),
      afterEnd('activate', 'branch.prove'),
    ],
    nightly: [
      ...afterMilliseconds('prepare', 'branch.prepare', 10, 40),
      ...afterMilliseconds('clone', 'branch.clone', 20, 80, 150, 300),
      ...afterMilliseconds('finalize', 'branch.finalize', 5, 20),
    ],
  });

  let project: ProjectBody;
  let content: Fingerprint;
  const path = () => `/api/v1/projects/${project.id}/branches`;
  const list = async () => (await api.get<{ branches: BranchBody[] }>(path())).body.branches;

  beforeAll(async () => {
    project = await api.project('Faults of batches');
    await api.allow(project.id);
    const { direct_url } = await api.credentials(project.id, 'main');
    await query(direct_url, readFileSync(SAMPLE, 'utf8'));
    content = await fingerprint(direct_url);
    await stage.checkpoint();
  });

  /** Each case begins without the branches of the one before. */
  afterEach(async () => {
    for (const { id, is_default } of await list()) if (!is_default) await api.delete(`${path()}/${id}`);
    await stage.atRest();
  });

  test.each(CASES)('a batch is created once, all of it: $victim killed $name', async ({ victim, moment }) => {
    const headers = { ...FROM_LOOPBACK, 'Idempotency-Key': randomUUID() };
    const begunBefore = stage.databasesBegun;

    const [one, other] = await stage.strike(victim, moment, () =>
      api.post<{ branches: BranchBody[] }>(`${path()}/batch`, { names: NAMES }, headers),
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
      const { direct_url, database_url } = await api.credentials(project.id, id);
      expect(await fingerprint(direct_url)).toEqual(content);
      expect(await query(database_url, 'select 1 as one')).toEqual([{ one: 1 }]);
    }
  });

  test.runIf(IS_NIGHTLY)('a batch whose source is busy leaves nothing', async () => {
    const { direct_url } = await api.credentials(project.id, 'main');
    const session = await connect(direct_url);
    await session.query('begin; create table uncommitted ()');
    const refused = await api.post(`${path()}/batch`, { names: NAMES }, FROM_LOOPBACK);
    await session.end();
    expect(refused).toMatchObject({ status: 409, body: { error: 'SOURCE_BUSY' } });
    expect((await list()).map(({ id }) => id)).toEqual([project.main_branch.id]);
  });
});

/** Long enough for a faulty host to begin a second clone. */
const SECOND_CLONE_MS = 300;

/** A creation whose clone PostgreSQL continues when the agent or the gateway dies. */
async function slowCreation(send: typeof insist<BranchBody>) {
  const project = await api.project('Orphaned');
  const path = `/api/v1/projects/${project.id}/branches`;
  const headers = { 'Idempotency-Key': randomUUID() };
  const begunBefore = stage.databasesBegun;
  const release = await stage.holdCopies();
  const created = send(() => api.post<BranchBody>(path, { branch_name: 'orphaned' }, headers));
  await stage.copyHeld();
  return {
    created,
    begun: () => stage.databasesBegun - begunBefore,
    branches: async () => (await api.get<{ branches: BranchBody[] }>(path)).body.branches,
    remove: (id = '') => api.delete(`${path}/${id}`),
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

test.each(IS_NIGHTLY ? (['agent', 'gateway'] as const) : (['agent'] as const))(
  'a clone that outlives the %s is adopted',
  async (victim) => {
    const { created, begun, branches, releaseAfter } = await slowCreation(insist);

    const [, answer] = await stage.crash([victim], () => [releaseAfter('branch.clone'), created]);

    expect(answer).toMatchObject({ status: 201 });
    expect(begun()).toBe(1);
    expect((await branches()).map(({ id }) => id)).toEqual([expect.any(String), answer?.body.id]);
  },
);

test.runIf(IS_NIGHTLY).each(['gateway', 'agent'] as const)(
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
  const project = await api.project('Overtaken');
  const path = `/api/v1/projects/${project.id}/branches`;
  let created = Promise.resolve<ApiResponse<BranchBody> | null>(null);
  await stage.reach(afterReply('prove', 'branch.prove'), () => {
    created = api.post<BranchBody>(path, { branch_name: 'overtaken' });
    return created;
  });
  const { body } = await api.get<{ branches: BranchBody[] }>(path);
  const deletion = await api.delete(`${path}/${body.branches[1]?.id}`);

  const [answer] = await stage.crash([], () => [created]);

  expect(deletion).toMatchObject({ status: 202 });
  expect(answer).toMatchObject({ status: 404 });
});

/** For the second client, and for a first one whose response was lost, it is deleted already. */
const DELETED = [202, 404];

test.each(deletionCases('branch.drop', 'branch', 'postmaster'))(
  'a branch is deleted once: $victim killed $name',
  async ({ victim, moment }) => {
    const project = await api.project('Branch deleted');
    const branch = await api.branch(project.id, 'doomed');
    const begunBefore = stage.databasesBegun;
    const path = `/api/v1/projects/${project.id}/branches`;

    const answers = await stage.strike(victim, moment, () => api.delete(`${path}/${branch.id}?purge=true`));

    for (const { status } of answers) expect(DELETED).toContain(status);
    const { body } = await api.get<{ branches: BranchBody[] }>(path);
    expect(body.branches.map(({ id }) => id)).toEqual([project.main_branch.id]);
    expect(stage.databasesBegun).toBe(begunBefore);
  },
);

describe('a change of main', () => {
  let project: ProjectBody;
  let url: string;
  let path: string;
  beforeAll(async () => {
    project = await api.project('Changed', { storage_quota_gib: 2 });
    path = `/api/v1/projects/${project.id}`;
    await api.allow(project.id);
    url = (await api.credentials(project.id, 'main', '?role=owner')).direct_url;
  });

  /** Seven steps, of which two run without a transaction. They take about as long together as the last moment says. */
  const stepsOn = (table: string) => `
    create table ${table} (id int);
    insert into ${table} values (1);
    begin; insert into ${table} values (2); select pg_sleep(0.2); insert into ${table} values (3); commit;
    create index concurrently ${table}_id on ${table} (id);
    insert into ${table} values (4);
    drop index concurrently ${table}_id;
    insert into ${table} values (5)`;

  interface Change {
    id: string;
    job_id: string;
    state: string;
    applied_count: number;
    application: { reason: string | null } | null;
    safety_snapshot_id: string | null;
  }
  const changeOf = async (id: string) => (await api.get<Change>(`${path}/changes/${id}`)).body;

  const CASES = faultCases({
    byDay: [1, 'postgres'],
    moments: [
      beforeCall('take the snapshot', 'snapshot.take'),
      afterReply('take the snapshot', 'snapshot.take'),
      ...afterMilliseconds('apply', 'change.apply', 700),
      ...around('apply', 'change.apply', {
        table: 'applied_change',
        statement: 'INSERT INTO applied_change%',
      }),
      soonAfterReply('end', 'change.apply', 0),
      afterEnd('end', 'change.apply'),
    ],
    nightly: afterMilliseconds('apply', 'change.apply', 50, 200, 400, 1_000, 1_300, 1_700, 2_200, 2_800),
  });
  let changed = 0;
  test.each(CASES)(
    'each statement is applied once, or it stopped: $victim killed $name',
    async ({ victim, moment }) => {
      changed += 1;
      const table = `changed_${changed}`;
      const planned = await api.post<Change>(`${path}/changes`, { sql: stepsOn(table) });
      const { id } = planned.body;
      expect((await api.post(`${path}/changes/${id}/rehearse`, {})).status).toBe(202);
      await stage.atRest();
      expect((await changeOf(id)).state).toBe('rehearsed');
      const apply = () => api.post<Change>(`${path}/changes/${id}/apply`, { confirm: 'main' });
      const answers = await stage.strike(victim, moment, apply);
      for (const { status } of answers) expect([202, 409]).toContain(status);
      for (let change = await changeOf(id); change.state !== 'applied'; change = await changeOf(id)) {
        // A state that the plan has named: what is counted is there, and nothing else.
        expect(change).toMatchObject({ state: 'stopped', application: { reason: 'interrupted' } });
        expect((await apply()).status).toBe(202);
        await stage.atRest();
      }
      expect(await query(url, `select id from ${table} order by id`)).toEqual(
        [1, 2, 3, 4, 5].map((n) => ({ id: n })),
      );
      expect(await query(url, 'select from pg_index where not indisvalid')).toEqual([]);
      const { safety_snapshot_id: safety } = await changeOf(id);
      expect(safety).not.toBeNull();
      await query(url, `drop table ${table}`);
      await api.delete(`${path}/snapshots/${safety}`);
      await stage.atRest();
    },
  );
});

/** A project's `main` is cloned from an empty database, which is then opened to the project's groups. */
const CREATIONS = faultCases({
  byDay: [4, 'agent'],
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
    api.post<ProjectBody>('/api/v1/projects', { name: 'Made once' }, headers),
  );

  expect(one).toMatchObject({ status: 201, body: { status: 'active', main_branch: { status: 'active' } } });
  expect(other).toMatchObject({ status: 201, body: { id: one?.body.id } });
  expect(stage.databasesBegun - begunBefore).toBeLessThanOrEqual(mayCloneTwice(victim) ? 2 : 1);
  const project = `/api/v1/projects/${one?.body.id}`;
  const branch = await api.branch(String(one?.body.id), 'of-it');
  const { direct_url } = await api.credentials(String(one?.body.id), branch.id);
  await query(direct_url, 'create table made_by_its_owner ()');
  await api.delete(project);
});

test.each(deletionCases('project.drop', 'project', 'pgbouncer'))(
  'a project is deleted once: $victim killed $name',
  async ({ victim, moment }) => {
    const project = await api.project('Project deleted');
    await api.branch(project.id, 'doomed');

    const answers = await stage.strike(victim, moment, () => api.delete(`/api/v1/projects/${project.id}`));

    // Or it is being deleted.
    for (const { status } of answers) expect([...DELETED, 409]).toContain(status);
    expect(await api.get(`/api/v1/projects/${project.id}`)).toMatchObject({ status: 404 });
  },
);

describe('the history of a branch', () => {
  let project: ProjectBody;
  let path: string;

  beforeAll(async () => {
    project = await api.project('History', { storage_quota_gib: 2 });
    path = `/api/v1/projects/${project.id}`;
    await api.allow(project.id);
    const { direct_url } = await api.credentials(project.id, 'main');
    await query(direct_url, 'create table item (id int primary key); insert into item values (1)');
  });

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
    byDay: [1, 'pgbouncer'],
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
    byDay: [1, 'postgres'],
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

  const RENAMING = faultCases({
    byDay: [0, 'agent'],
    ...of(
      around(
        'rename',
        'branch.rename',
        { table: 'pg_database', statement: 'ALTER DATABASE%' },
        { table: 'branch', statement: 'ALTER DATABASE%' },
      ),
      [soonAfterReply('end', 'branch.rename', 0), afterEnd('end', 'branch.rename')],
    ),
  });
  let renames = 0;
  test.each(RENAMING)('a branch is renamed once: $victim killed $name', async ({ victim, moment }) => {
    renames += 1;
    const before = `before-${renames}`;
    const after = `after-${renames}`;
    const { id } = await api.branch(project.id, before);
    await insert(before, 2);
    const former = await api.credentials(project.id, before);
    const rename = () => api.patch<BranchBody>(`${path}/branches/${id}`, { branch_name: after });
    const answers = await stage.strike(victim, moment, rename);
    for (const status of statusesOf(answers)) expect(status).toBe(200);
    expect(await rename()).toMatchObject({ status: 200, body: { id, branch_name: after } });
    expect(await idsIn(after)).toEqual([1, 2]);
    await expect(query(former.direct_url, 'select 1')).rejects.toThrow('does not exist');
    const { body } = await api.get<{ audit_events: { branch_id: string }[] }>(
      `/api/v1/audit-events?name=branch.renamed&project_id=${project.id}`,
    );
    expect(body.audit_events.filter(({ branch_id }) => branch_id === id)).toHaveLength(1);
    // The former name can be taken.
    await api.branch(project.id, before, { source_branch_id: id });
    for (const name of [before, after]) await api.delete(`${path}/branches/${name}?purge=true`);
  });

  const UNDOING = faultCases({
    ...of(
      around('take', 'snapshot.take', { table: 'snapshot', statement: 'INSERT INTO snapshot%' }),
      around('clone', 'reset.clone', { table: 'pg_database', statement: 'CREATE DATABASE%' }),
      around('swap', 'reset.swap', { table: 'snapshot', statement: 'INSERT INTO snapshot%' }),
      [soonAfterReply('end', 'reset.swap', 0), afterEnd('end', 'reset.swap')],
    ),
  });
  test.each(UNDOING)('a change is undone once: $victim killed $name', async ({ victim, moment }) => {
    await api.branch(project.id, 'rework');
    const branch = `${path}/branches/rework`;
    await api.post(`${branch}/checkpoints`, {});
    await insert('rework', 2);
    const keys = [crypto.randomUUID(), crypto.randomUUID()];
    const [ofCheckpoint, ofUndo] = keys.map((key) => ({ 'Idempotency-Key': key }));
    /** Ends with two checkpoints, and the branch at the first one. */
    const request = async () => {
      const taken = await api.post(`${branch}/checkpoints`, {}, ofCheckpoint);
      return taken.status === 201 ? api.post(`${branch}/undo`, { steps: 2 }, ofUndo) : taken;
    };
    const answers = await stage.strike(victim, moment, request);
    for (const status of statusesOf(answers)) expect([200, 202, 409]).toContain(status);
    expect((await api.post(`${branch}/undo`, { steps: 2 }, ofUndo)).status).toBe(200);
    expect(await idsIn('rework')).toEqual([1]);
    const { body } = await api.get<{ checkpoints: { number: number; checkpoint_id: string }[] }>(
      `${branch}/checkpoints`,
    );
    expect(body.checkpoints.map(({ number }) => number)).toEqual([2, 1]);
    const [second] = body.checkpoints;
    expect((await api.post(`${branch}/undo`, { to: second?.checkpoint_id })).status).toBe(200);
    expect(await idsIn('rework')).toEqual([1, 2]);
    await api.delete(`${branch}?purge=true`);
  });

  const KEEPING = faultCases({
    byDay: [2, 'agent'],
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
    byDay: [0, 'postmaster'],
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
    byDay: [0, 'agent'],
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
});
