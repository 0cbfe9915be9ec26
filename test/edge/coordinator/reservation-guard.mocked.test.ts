import { beforeEach, expect, test, vi } from 'vitest';
import type { BranchRequest } from '../../../edge/branches/create-branches.ts';
import type { ResetRequest } from '../../../edge/branches/reset-branch.ts';
import { ProjectCoordinator } from '../../../edge/coordinator/project-coordinator.ts';
import type { HostLinks } from '../../../edge/hosts/host-client.ts';
import { fail, ok } from '../../../shared/result.ts';

const { happened, noting } = vi.hoisted(() => {
  const names: string[] = [];
  return {
    happened: names,
    noting: <Value>(name: string, value: Value) => {
      names.push(name);
      return value;
    },
  };
});
vi.mock('cloudflare:workers', () => ({
  DurableObject: class {
    ctx: unknown;
    env: unknown;

    constructor(ctx: unknown, env: unknown) {
      this.ctx = ctx;
      this.env = env;
    }
  },
  RpcTarget: class {},
}));
vi.mock('../../../edge/settings.ts', () => ({ readSettings: () => ({}) }));
vi.mock('../../../edge/hosts/host-client.ts', async (original) => ({
  ...(await original<object>()),
  isLinked: async () => true,
}));
vi.mock('../../../edge/coordinator/alarm.ts', () => ({
  EarliestAlarm: class {
    recall = async () => {};
    guard = () => noting('alarm', undefined);
  },
  Retries: class {},
}));
vi.mock('../../../edge/monitoring/measurements.ts', () => ({ MeasurementStore: class {} }));
vi.mock('../../../edge/monitoring/project-monitor.ts', () => ({
  ProjectMonitor: class {
    readSizes = async () => noting('sizes', ok({ sizes: {} }));
  },
}));
vi.mock('../../../edge/monitoring/storage-quota.ts', () => ({
  StorageQuota: class {
    reserveWithinQuota = async () => noting('reserve', fail({ code: 'NOT_FOUND' }));
  },
}));

beforeEach(() => {
  happened.length = 0;
});

const state = {
  id: { name: 'p' },
  storage: {},
  blockConcurrencyWhile: (work: () => unknown) => work(),
} as unknown as DurableObjectState;
const coordinator = new ProjectCoordinator(state, {} as HostLinks as never);
const branch = { id: 'b', projectId: 'p' };

// The host may need longer for the sizes than the alarm guards.
test.each([
  [
    'a creation',
    () => {
      const project = { id: 'p', hostId: 'h' };
      const request = {
        branches: [branch],
        project,
        source: {},
        onExists: 'fail',
      } as unknown as BranchRequest;
      return coordinator.createBranches(request, 0);
    },
  ],
  [
    'a reset',
    () => coordinator.resetBranch({ branch, hostId: 'h', source: {} } as unknown as ResetRequest, 0),
  ],
])('the alarm is set again before the reservation of %s', async (_, request) => {
  expect(await request()).toMatchObject({ ok: false });
  expect(happened).toEqual(['alarm', 'sizes', 'alarm', 'reserve']);
});
