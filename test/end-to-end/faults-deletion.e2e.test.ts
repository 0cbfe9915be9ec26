import { afterAll, beforeAll, expect, test } from 'vitest';
import type { BranchBody } from '../support/api.ts';
import { FaultStage, VICTIMS } from '../support/stack/fault-stage.ts';
import {
  afterEnd,
  around,
  beforeRequest,
  soonAfterReply,
  soonAfterRequest,
} from '../support/stack/moments.ts';

/** Every moment at which each part is killed, by the operation that does the work. */
const casesOf = (method: 'branch.drop' | 'project.drop') =>
  [
    beforeRequest('record'),
    soonAfterRequest('record', 3),
    ...around('drop', method, 3, 12, 25),
    soonAfterReply('end', method, 2),
    afterEnd('end'),
  ].flatMap((moment) => VICTIMS.map((victim) => ({ name: moment.name, victim, moment })));

/** The second client, and a first one whose answer was lost, find that it is deleted already. */
const DELETED = [202, 404];

let stage: FaultStage;
beforeAll(async () => {
  stage = await FaultStage.open();
});
afterAll(() => stage?.close());

test.each(casesOf('branch.drop'))(
  'a branch is deleted once: $victim killed $name',
  async ({ victim, moment }) => {
    const project = await stage.api.project('Branch deleted');
    const branch = await stage.api.branch(project.id, 'doomed');
    const begunBefore = stage.databasesBegun;
    const path = `/api/v1/projects/${project.id}/branches`;

    const answers = await stage.strike(victim, moment, () => stage.api.delete(`${path}/${branch.id}`));

    for (const { status } of answers) expect(DELETED).toContain(status);
    const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
    expect(body.branches.map(({ id }) => id)).toEqual([project.main_branch.id]);
    expect(stage.databasesBegun).toBe(begunBefore);
  },
);

test.each(casesOf('project.drop'))(
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
