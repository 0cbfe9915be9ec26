import { afterAll, beforeAll, describe } from 'vitest';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { describeBatches } from './batch-operations.ts';
import { describeBranchLimits } from './branch-limits.ts';
import { describeBranchOperations } from './branch-operations.ts';
import { describeIsolation } from './isolation.ts';
import { describeRoom } from './make-room.ts';
import { describeProjectSizes } from './project-sizes.ts';
import { describeSnapshots } from './snapshots.ts';

/** Operations on branches and snapshots, with projects of their own for each part. */
let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers?.stop());
const host = () => servers;

describe('branches', () => describeBranchOperations(host));
describe('batches', () => describeBatches(host));
describe('snapshots', () => describeSnapshots(host));
describe('sizes of a project', () => describeProjectSizes(host));
describe('room for copies', () => describeRoom(host));
describe('isolation', () => describeIsolation(host));
describe('limits of a branch', () => describeBranchLimits(host));
