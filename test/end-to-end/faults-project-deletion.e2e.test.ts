import { afterAll, beforeAll, expect, test } from 'vitest';
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
  firstVictim: 4,
  moments: [
    beforeRequest('record', 'project.drop'),
    soonAfterRequest('record', 3, 'project.drop'),
    ...around(
      'drop',
      'project.drop',
      { table: 'login', statement: 'DELETE FROM login%' },
      { table: 'pg_database', statement: 'DROP DATABASE%' },
      { table: 'project', statement: 'DELETE FROM project%' },
    ),
    soonAfterReply('end', 'project.drop', 0),
    afterEnd('end', 'project.drop'),
  ],
  nightly: afterMilliseconds('drop', 'project.drop', 3, 12, 25),
});

/**
 * For the second client, and for a first one whose response was lost, it is being deleted or deleted already.
 */
const DELETED = [202, 404, 409];

let stage: FaultStage;
beforeAll(async () => {
  stage = await FaultStage.open();
});
afterAll(() => stage?.close());

test.each(CASES)('a project is deleted once: $victim killed $name', async ({ victim, moment }) => {
  const project = await stage.api.project('Project deleted');
  await stage.api.branch(project.id, 'doomed');

  const answers = await stage.strike(victim, moment, () =>
    stage.api.delete(`/api/v1/projects/${project.id}`),
  );

  for (const { status } of answers) expect(DELETED).toContain(status);
  expect(await stage.api.get(`/api/v1/projects/${project.id}`)).toMatchObject({ status: 404 });
});
