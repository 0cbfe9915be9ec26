import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type CallHost, HostCallError } from '../../edge/hosts/host-client.ts';
import { type Expected, openInventory } from '../../edge/reconciliation/read-inventory.ts';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import type { Holdings } from '../../shared/protocol/inventory-digest.ts';
import { inventoryAnswer } from '../support/host/scripted-inventory.ts';
import { firstByDay } from '../support/nightly.ts';

const CLUSTER = { system_identifier: '7', free_bytes: 1_000 };

/** A host with the agent's own digest and pages. @param pageEntries default: the agent's */
function hostWith(holdings: Holdings, pageEntries?: number) {
  const calls: { method: string; params: unknown; bytes: number }[] = [];
  const callHost = (async (method: string, params: unknown) => {
    const result = await inventoryAnswer({ ...CLUSTER, ...holdings }, method, params, pageEntries);
    calls.push({ method, params, bytes: JSON.stringify([params, result]).length });
    return result;
  }) as CallHost;
  return { calls, callHost };
}

const compareIds = (one: object, other: object) => (JSON.stringify(one) < JSON.stringify(other) ? -1 : 1);

/** In one order, so that two inventories can be compared. */
const sorted = ({
  projects,
  branches,
  snapshots,
}: {
  projects: object[];
  branches: object[];
  snapshots: object[] | null;
}) => ({
  projects: projects.toSorted(compareIds),
  branches: branches.toSorted(compareIds),
  snapshots: snapshots?.toSorted(compareIds),
});

const copy = (holdings: Holdings): Holdings => structuredClone(holdings);

/** As an agent reports it: every project with the same number of ready branches, and a snapshot. */
function manyDatabases(projectCount: number, branchesEach: number): Holdings {
  const ids = Array.from({ length: projectCount }, () => crypto.randomUUID());
  return {
    projects: ids.map((project_id) => ({ project_id, access_revision: 4 })),
    branches: ids.flatMap((project_id, project) =>
      Array.from({ length: branchesEach }, (_, n) => ({
        project_id,
        branch_id: crypto.randomUUID(),
        database: `db_shop-${project}_prod_br_${n}`,
        state: 'ready' as const,
        made_by: crypto.randomUUID(),
      })),
    ),
    snapshots: ids.map((project_id) => ({
      project_id,
      snapshot_id: crypto.randomUUID(),
      ready: true,
      independent: false,
    })),
  };
}

describe.each(
  firstByDay(1, [
    ['1,000 projects with 20 branches', 1_000, 20],
    ['20,000 projects with one branch', 20_000, 1],
  ] as const),
)('a host of %s', (_, projects, branches) => {
  const holdings = manyDatabases(projects, branches);
  const complete = async (expected: Holdings) => {
    const host = hostWith(holdings);
    const reading = await openInventory(host.callHost);
    return { inventory: await reading.complete(async () => expected as Expected), calls: host.calls };
  };

  test('moves at most 100 KB if nothing differs', async () => {
    const { inventory, calls } = await complete(copy(holdings));
    expect(calls.map(({ method }) => method)).toEqual(['inventory.digest']);
    expect(calls.reduce((sum, { bytes }) => sum + bytes, 0)).toBeLessThan(100_000);
    expect(inventory).toMatchObject(CLUSTER);
    expect(sorted(inventory)).toEqual(sorted(holdings));
  });

  test('lists the group of the one project that differs', async () => {
    const expected = copy(holdings);
    const [lost] = expected.branches.splice(77, 1);
    const { inventory, calls } = await complete(expected);
    expect(calls.map(({ method, params }) => [method, params])).toEqual([
      ['inventory.digest', {}],
      ['inventory.list', { groups: [lost?.project_id.slice(0, 2)], after: null }],
    ]);
    expect(calls.reduce((sum, { bytes }) => sum + bytes, 0)).toBeLessThan(100_000);
    expect(sorted(inventory)).toEqual(sorted(holdings));
  });

  test('is listed in pages that fit into messages if everything differs', async () => {
    const { inventory, calls } = await complete({ projects: [], branches: [], snapshots: [] });
    expect(calls.length).toBeGreaterThan(10);
    expect(Math.max(...calls.map(({ bytes }) => bytes))).toBeLessThan(BOUNDS.messageBytes / 2);
    expect(sorted(inventory)).toEqual(sorted(holdings));
  });
});

test('every difference is found: what the host holds is what is read, whatever the records say', async () => {
  const ids = Array.from({ length: 4 }, (_, n) => `${n % 2}0000000-0000-4000-8000-00000000000${n}`);
  const project_id = fc.constantFrom(...ids);
  const some = <T>(entry: fc.Arbitrary<T>, key: (value: T) => string) =>
    fc.uniqueArray(entry, { maxLength: 5, selector: key });
  const holdings: fc.Arbitrary<Holdings> = fc.record({
    projects: some(fc.record({ project_id, access_revision: fc.nat(2) }), (entry) => entry.project_id),
    branches: some(
      fc.record({
        project_id,
        branch_id: fc.constantFrom(...ids),
        database: fc.constant('db_x'),
        made_by: fc.constant(null),
        state: fc.constantFrom('prepared' as const, 'building' as const, 'ready' as const),
      }),
      (entry) => entry.branch_id,
    ),
    snapshots: some(
      fc.record({
        project_id,
        snapshot_id: fc.constantFrom(...ids),
        ready: fc.boolean(),
        independent: fc.boolean(),
      }),
      (entry) => entry.snapshot_id,
    ),
  });
  await fc.assert(
    fc.asyncProperty(holdings, holdings, async (held, expected) => {
      const reading = await openInventory(hostWith(held, 2).callHost);
      const inventory = await reading.complete(async () => expected as Expected);
      expect(sorted(inventory)).toEqual(sorted(held));
    }),
    { numRuns: 300 },
  );
});

test.each([0, 1_000])('a host whose pages of %i entries never end is refused', async (each) => {
  let calls = 0;
  const project_id = crypto.randomUUID();
  const callHost = (async (method: string) => {
    if (method === 'inventory.digest') return { ...CLUSTER, groups: { aa: { count: 1, hash: 'x' } } };
    calls += 1;
    const next = `aa000000-0000-4000-8000-${calls.toString(16).padStart(12, '0')}`;
    const projects = Array.from({ length: each }, () => ({ project_id, access_revision: 1 }));
    return { projects, branches: [], snapshots: [], next };
  }) as CallHost;
  const reading = await openInventory(callHost);
  const listing = reading.complete(async () => ({ projects: [], branches: [], snapshots: [] }));
  await expect(listing).rejects.toThrow('more than 200000 entries');
  expect(calls).toBeLessThanOrEqual(200_001);
});

test('of an agent of the last release the whole inventory is read, which has no snapshots', async () => {
  const whole = { system_identifier: '7', free_bytes: null, branches: [], projects: [], snapshots: null };
  const callHost = (async (method: string) => {
    if (method === 'host.inventory') return whole;
    throw new HostCallError('HOST_UPGRADE_REQUIRED', `no ${method}`);
  }) as CallHost;
  const reading = await openInventory(callHost);
  expect(reading.free_bytes).toBeNull();
  const fail = () => Promise.reject(new Error('nothing is expected of it'));
  expect(await reading.complete(fail)).toEqual(whole);
  expect(await reading.list([crypto.randomUUID()])).toEqual(whole);
});
