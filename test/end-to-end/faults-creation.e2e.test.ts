import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { type Fingerprint, fingerprint, query } from '../support/database.ts';
import { fillLedger } from '../support/load.ts';
import { FaultStage, VICTIMS, type Victim } from '../support/stack/fault-stage.ts';
import {
  afterEnd,
  afterReply,
  around,
  beforeCall,
  beforeRequest,
  duringCopy,
  soonAfterReply,
  soonAfterRequest,
} from '../support/stack/moments.ts';

const SAMPLE = join(import.meta.dirname, '../support/sample.sql');
/** Large enough to be cloned file by file where there is no reflink, which takes some hundred milliseconds. */
const LARGE_MB = 64;

/** Every moment at which each part is killed, and what is cloned then. */
const MOMENTS = [
  { moments: [beforeRequest('reserve'), soonAfterRequest('reserve', 8)], size: 'small' },
  { moments: around('prepare', 'branch.prepare', 3, 10, 20), size: 'small' },
  { moments: [beforeCall('clone', 'branch.clone'), duringCopy('clone', 5)], size: 'small' },
  { moments: [duringCopy('clone', 40), afterReply('clone', 'branch.clone')], size: 'large' },
  { moments: around('publish', 'branch.finalize', 0, 1), size: 'small' },
  { moments: around('prove', 'branch.prove', 1, 4), size: 'small' },
  { moments: [soonAfterReply('activate', 'branch.prove', 2), afterEnd('activate')], size: 'small' },
] as const;

const CASES = MOMENTS.flatMap(({ moments, size }) =>
  moments.flatMap((moment) => VICTIMS.map((victim) => ({ name: moment.name, victim, moment, size }))),
);

/** A project's `main` comes from an empty database, which is then opened to the project's groups. */
const PROJECT_CASES = [
  beforeRequest('reserve'),
  soonAfterRequest('reserve', 8),
  ...around('clone', 'branch.clone', 15, 30, 45),
  afterReply('publish', 'branch.finalize'),
  soonAfterReply('activate', 'branch.prove', 2),
].flatMap((moment) => VICTIMS.map((victim) => ({ name: moment.name, victim, moment })));

const isServer = (victim: Victim) => victim === 'postgres' || victim === 'postmaster';

let stage: FaultStage;
const sources = {} as Record<'small' | 'large', { project: ProjectBody; content: Fingerprint }>;

beforeAll(async () => {
  stage = await FaultStage.open();
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
afterAll(() => stage?.close());

/** What a case has left, so that the next one is judged by itself. */
afterEach(async () => {
  for (const { project } of Object.values(sources)) {
    const path = `/api/v1/projects/${project.id}/branches`;
    const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
    for (const { id, is_default } of body.branches) if (!is_default) await stage.api.delete(`${path}/${id}`);
  }
  await stage.atRest();
});

test.each(CASES)('a branch is made once: $victim killed $name', async ({ victim, moment, size }) => {
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
  // Only a clone that the server's own end has interrupted is begun anew.
  expect(stage.databasesBegun - begunBefore).toBeLessThanOrEqual(isServer(victim) ? 2 : 1);
  const credentials = await stage.api.credentials(project.id, branch_name);
  expect(await query(credentials.database_url, 'select current_database() as name')).toEqual([
    { name: credentials.database },
  ]);
  expect(await fingerprint(credentials.direct_url)).toEqual(content);
});

test.each(PROJECT_CASES)('a project is made once: $victim killed $name', async ({ victim, moment }) => {
  const headers = { 'Idempotency-Key': randomUUID() };
  const begunBefore = stage.databasesBegun;

  const [one, other] = await stage.strike(victim, moment, () =>
    stage.api.post<ProjectBody>('/api/v1/projects', { name: 'Made once' }, headers),
  );

  expect(one).toMatchObject({ status: 201, body: { status: 'active', main_branch: { status: 'active' } } });
  expect(other).toMatchObject({ status: 201, body: { id: one?.body.id } });
  expect(stage.databasesBegun - begunBefore).toBeLessThanOrEqual(isServer(victim) ? 2 : 1);
  const project = `/api/v1/projects/${one?.body.id}`;
  const branch = await stage.api.branch(String(one?.body.id), 'of-it');
  const { direct_url } = await stage.api.credentials(String(one?.body.id), branch.id);
  await query(direct_url, 'create table made_by_its_owner ()');
  await stage.api.delete(project);
});
