import { beforeEach, expect, test, vi } from 'vitest';
import type { BranchRequest } from '../../../edge/branches/create-branches.ts';
import type { ResetRequest } from '../../../edge/branches/reset-branch.ts';
import { createBranches } from '../../../edge/coordinator/creations.ts';
import { ProjectHistory } from '../../../edge/coordinator/project-history.ts';
import type { CoordinatorParts } from '../../../edge/coordinator/run-job.ts';
import { fail, ok } from '../../../shared/result.ts';

vi.mock('cloudflare:workers', () => ({ RpcTarget: class {} }));

let happened: string[];
beforeEach(() => {
  happened = [];
});

const noting = <Value>(name: string, value: Value) => {
  happened.push(name);
  return value;
};
const parts = {
  isLinked: async () => true,
  armAlarm: () => noting('alarm', undefined),
  running: () => ({}),
  monitor: { readSizes: async () => noting('sizes', ok({ sizes: {} })) },
  quota: { reserveWithinQuota: async () => noting('reserve', fail({ code: 'NOT_FOUND' })) },
} as unknown as CoordinatorParts;
const history = new ProjectHistory(parts);
const branch = { id: 'b', projectId: 'p' };

// The host may need longer for the sizes than the alarm guards.
test.each([
  [
    'a creation',
    () =>
      createBranches(
        { ...parts, history },
        {
          branches: [branch],
          project: { id: 'p', hostId: 'h' },
          onExists: 'fail',
        } as unknown as BranchRequest,
        0,
      ),
  ],
  ['a reset', () => history.resetBranch({ branch, hostId: 'h' } as unknown as ResetRequest, 0)],
])('the alarm is set again before the reservation of %s', async (_, request) => {
  expect(await request()).toMatchObject({ ok: false });
  expect(happened).toEqual(['alarm', 'sizes', 'alarm', 'reserve']);
});
