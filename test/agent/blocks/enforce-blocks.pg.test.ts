import { afterAll, beforeAll, expect, test } from 'vitest';
import { BlockEnforcer, type BlockSource, type TimedBlock } from '../../../agent/blocks/enforce-blocks.ts';
import { readBlocks } from '../../../agent/blocks/stored-blocks.ts';
import { eventually } from '../../support/eventually.ts';
import { attempt, targetOf } from '../../support/host/attempts.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, Project } from '../../support/host/host-project.ts';

let servers: TestHost;
let branch: Branch;
beforeAll(async () => {
  servers = await startHost();
  branch = await new Project(servers.host).create('db_blocks_prod', null);
});
afterAll(() => servers.stop());

test('a block that ends after a failure to store it does not stay with the servers', async () => {
  const { postgres, rules } = servers.host;
  await rules.sync();
  let wanted: TimedBlock[] = [{ branch_id: branch.branch_id, address: null, reason: 'locks', end: 1e300 }];
  const troubles: unknown[] = [];
  const source: BlockSource = {
    blocker: 'guard',
    now: () => 0,
    wanted: () => wanted,
    resume: () => {},
    onApplied: () => {},
    onTrouble: (trouble) => troubles.push(trouble),
  };
  const enforcer = new BlockEnforcer({ postgres, rules }, source);
  // PostgreSQL cannot store such a time, but the servers reject the branch by then.
  await enforcer.enforce();
  expect(troubles).toEqual([expect.any(Error)]);
  await eventually(async () => expect(await attempt(targetOf(servers, 'direct', branch))).toBe('refused'));
  wanted = [];
  await eventually(async () => {
    await enforcer.enforce();
    expect(troubles.at(-1)).toBeNull();
  });
  await eventually(async () => expect(await attempt(targetOf(servers, 'direct', branch))).toBe('in'));
  expect(await readBlocks(postgres)).toEqual([]);
});
