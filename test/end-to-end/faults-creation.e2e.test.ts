import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { type Fingerprint, fingerprint, query } from '../support/database.ts';
import { FaultStage, VICTIMS } from '../support/fault-stage.ts';
import { fillLedger } from '../support/load.ts';
import {
  afterEnd,
  aroundCall,
  beforeRequest,
  type Moment,
  soonAfterReply,
  soonAfterRequest,
} from '../support/moments.ts';

const SAMPLE = new URL('../support/sample.sql', import.meta.url);
/** Large enough to be cloned file by file where there is no reflink, which takes some hundred milliseconds. */
const LARGE_MB = 64;

const BEFORE_THE_CLONE: Moment[] = [
  beforeRequest('reserve'),
  soonAfterRequest('reserve', 10),
  ...aroundCall('prepare', 'branch.prepare', 15),
];
const CLONE = aroundCall('clone', 'branch.clone', 200);
const AFTER_THE_CLONE: Moment[] = [
  ...aroundCall('publish', 'branch.publish', 5),
  ...aroundCall('prove', 'branch.prove', 5),
  soonAfterReply('activate', 'branch.prove', 2),
  afterEnd('activate'),
];

let stage: FaultStage;
const sources = {} as Record<'small' | 'large', { project: ProjectBody; content: Fingerprint }>;
let branches = 0;

beforeAll(async () => {
  stage = await FaultStage.open();
  const fill = {
    small: async (url: string) => void (await query(url, readFileSync(SAMPLE, 'utf8'))),
    large: (url: string) => fillLedger(url, LARGE_MB),
  };
  for (const size of ['small', 'large'] as const) {
    const project = await stage.api.project(`Faults ${size}`);
    await stage.api.allow(project.id);
    const { direct_url } = await stage.api.credentials(project.id, 'main');
    await fill[size](direct_url);
    sources[size] = { project, content: await fingerprint(direct_url) };
  }
});
afterAll(() => stage?.close());

/** Makes a branch through the fault, holds what came of it against the promise, and deletes it again. */
async function makeThroughFault(
  victim: (typeof VICTIMS)[number],
  moment: Moment,
  { size, clones }: { size: keyof typeof sources; clones: number },
) {
  const { project, content } = sources[size];
  const path = `/api/v1/projects/${project.id}/branches`;
  const branch_name = `branch-${++branches}`;
  const headers = { ...FROM_LOOPBACK, 'Idempotency-Key': randomUUID() };
  const begunBefore = stage.databasesBegun;

  const answers = await stage.strike(victim, moment, () =>
    stage.api.post<BranchBody>(path, { branch_name }, headers),
  );

  expect(answers.map(({ status }) => status)).toEqual([201, 201]);
  expect(answers[1]?.body).toEqual(answers[0]?.body);
  const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
  const named = body.branches.filter((branch) => branch.branch_name === branch_name);
  expect(named).toEqual([expect.objectContaining({ id: answers[0]?.body.id, status: 'active' })]);
  expect(stage.databasesBegun - begunBefore).toBeLessThanOrEqual(clones);
  const credentials = await stage.api.credentials(project.id, branch_name);
  expect(await query(credentials.database_url, 'select current_database() as name')).toEqual([
    { name: credentials.database },
  ]);
  expect(await fingerprint(credentials.direct_url)).toEqual(content);
  await stage.api.delete(`${path}/${answers[0]?.body.id}`);
}

describe.each(VICTIMS)('a creation, %s killed', (victim) => {
  // A clone that was interrupted by the server's own end has to be begun anew; any other is only made once.
  const clones = victim === 'postgres' ? 2 : 1;

  test.each(BEFORE_THE_CLONE)('$name', (moment) =>
    makeThroughFault(victim, moment, { size: 'small', clones }),
  );
  test.each(CLONE)('$name', (moment) => makeThroughFault(victim, moment, { size: 'large', clones }));
  test.each(AFTER_THE_CLONE)('$name', (moment) =>
    makeThroughFault(victim, moment, { size: 'small', clones: 1 }),
  );
});
