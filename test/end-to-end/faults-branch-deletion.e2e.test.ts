import { afterAll, beforeAll, expect, test } from 'vitest';
import type { BranchBody } from '../support/api.ts';
import { faultCases } from '../support/stack/fault-cases.ts';
import { FaultStage } from '../support/stack/fault-stage.ts';
import {
  afterEnd,
  afterMilliseconds,
  around,
  beforeRequest,
  soonAfterReply,
  soonAfterRequest,
} from '../support/stack/moments.ts';

const CASES = faultCases({
  firstVictim: 2,
  moments: [
    beforeRequest('record', 'branch.drop'),
    soonAfterRequest('record', 3, 'branch.drop'),
    ...around(
      'drop',
      'branch.drop',
      { table: 'login', statement: 'DELETE FROM login%' },
      { table: 'pg_database', statement: 'DROP DATABASE%' },
      { table: 'branch', statement: 'DELETE FROM branch%' },
    ),
    soonAfterReply('end', 'branch.drop', 0),
    afterEnd('end', 'branch.drop'),
  ],
  nightly: afterMilliseconds('drop', 'branch.drop', 3, 12, 25),
});

/** For the second client, and for a first one whose response was lost, it is deleted already. */
const DELETED = [202, 404];

let stage: FaultStage;
beforeAll(async () => {
  stage = await FaultStage.open();
});
afterAll(() => stage?.close());

test.each(CASES)('a branch is deleted once: $victim killed $name', async ({ victim, moment }) => {
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
});
