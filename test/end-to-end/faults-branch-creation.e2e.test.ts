import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { type Fingerprint, fingerprint, query } from '../support/database.ts';
import { fillLedger } from '../support/load.ts';
import { faultCases } from '../support/stack/fault-cases.ts';
import { FaultStage, mayCloneTwice } from '../support/stack/fault-stage.ts';
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
/**
 * Large enough to be cloned file by file where there is no reflink, which takes some hundred milliseconds.
 */
const LARGE_MB = 64;

/** Every moment at which a part is killed while a small branch is created. */
const SMALL = faultCases({
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

/** Each case begins without the branches of the one before. */
afterEach(async () => {
  for (const { project } of Object.values(sources)) {
    const path = `/api/v1/projects/${project.id}/branches`;
    const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
    for (const { id, is_default } of body.branches) if (!is_default) await stage.api.delete(`${path}/${id}`);
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
