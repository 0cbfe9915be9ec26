import { expect, test } from 'vitest';
import {
  differencesBetween,
  type HostRecords,
  type Inventory,
  type RecordedBranch,
} from '../../../edge/reconciliation/differences.ts';
import type { BranchStatus } from '../../../shared/branch/branch-status.ts';

type HeldState = Inventory['branches'][number]['state'];

const recorded = (status: BranchStatus, id = 'b'): RecordedBranch => ({
  id,
  projectId: 'p',
  tenantId: 't',
  status,
  databaseName: `db_${id}`,
});
const held = (state: HeldState, branch_id = 'b', project_id = 'p') => ({
  project_id,
  branch_id,
  database: `db_${branch_id}`,
  state,
  made_by: 'j' as string | null,
});

/** Revision 3 of the project's access was once in effect on the host. */
const compare = (inventory: Partial<Inventory>, records: Partial<HostRecords>) =>
  differencesBetween(
    { system_identifier: '1', free_bytes: 0, branches: [], projects: [], snapshots: [], ...inventory },
    new Map([['p', 3]]),
    { branches: [], projects: [{ id: 'p', accessRevision: 3, stale: false }], inWork: [], ...records },
  );

/** The resolution for each status of the record (rows) and state on the host; `-`: none. */
const CELLS = `
           none        prepared    building    ready
  none     -           orphans     orphans     orphans
  creating -           -           -           -
  active   missing     missing     missing     -
  expired  missing     missing     missing     -
  deleting -           -           -           -
  failed   -           orphans     orphans     foundAgain`;

const [states = [], ...rows] = CELLS.trim()
  .split('\n')
  .map((line) => line.trim().split(/\s+/));

test.each(rows.flatMap(([status, ...outcomes]) => states.map((state, i) => [status, state, outcomes[i]])))(
  'record %s, host %s: %s',
  (status, state, outcome) => {
    const branches = state === 'none' ? [] : [held(state as HeldState)];
    const records = status === 'none' ? [] : [recorded(status as BranchStatus)];
    const { orphans, missing, foundAgain } = compare({ branches }, { branches: records });
    const named = { orphans: orphans.length, missing: missing.length, foundAgain: foundAgain.length };
    expect(named).toEqual({
      orphans: 0,
      missing: 0,
      foundAgain: 0,
      ...(outcome !== '-' && { [outcome ?? '']: 1 }),
    });
  },
);

test('a branch that was as recorded when the host was read is no leftover, although its record is gone now', () => {
  const unlisted = { ...held('ready'), made_by: null };
  expect(compare({ branches: [unlisted] }, {}).orphans).toEqual([]);
});

test('the subjects of open jobs are left to them, and the jobs are woken', () => {
  const inWork = [{ projectId: 'p', branchIds: ['b'] }];
  const nothing = { orphans: [], orphanedProjects: [], missing: [], foundAgain: [], toWake: ['p'] };
  expect(compare({ branches: [held('building')] }, { inWork })).toMatchObject(nothing);
  expect(compare({ branches: [held('ready')] }, { inWork, branches: [recorded('failed')] })).toMatchObject(
    nothing,
  );
  expect(compare({ branches: [held('ready')] }, { inWork, projects: [] })).toMatchObject(nothing);
});

test('a database under another name than on record is found, unless its rename is open', () => {
  const branches = [{ ...held('ready'), database: 'db_former' }];
  const records = { branches: [recorded('active')] };
  expect(compare({ branches }, records)).toMatchObject({
    misnamed: [{ id: 'b' }],
    missing: [],
    toWake: ['p'],
  });
  const inWork = [{ projectId: 'p', branchIds: ['b'] }];
  expect(compare({ branches }, { ...records, inWork }).misnamed).toEqual([]);
  expect(compare({ branches: [held('ready')] }, records).misnamed).toEqual([]);
});

test('a project without a record is dropped as a whole, once', () => {
  const branches = [held('ready', 'b', 'unknown'), held('prepared', 'c', 'unknown')];
  const projects = [{ project_id: 'unknown', access_revision: 0 }];
  expect(compare({ branches, projects }, {})).toMatchObject({ orphans: [], orphanedProjects: ['unknown'] });
});

test('access that the host has lost is applied completely, a pending revision only as such', () => {
  const at = (access_revision: number) => ({ projects: [{ project_id: 'p', access_revision }] });
  const stale = { projects: [{ id: 'p', accessRevision: 4, stale: true }] };
  expect(compare(at(3), {})).toMatchObject({ outdatedAccess: [], toWake: [] });
  expect(compare(at(2), {})).toMatchObject({ outdatedAccess: ['p'], toWake: ['p'] });
  // A fourth revision is pending, or was created during the inventory.
  for (const revision of [3, 4])
    expect(compare(at(revision), stale)).toMatchObject({ outdatedAccess: [], toWake: ['p'] });
});

test('access that is newer on the host than on record is applied again', () => {
  const projects = [{ project_id: 'p', access_revision: 5 }];
  expect(compare({ projects }, {})).toMatchObject({
    outdatedAccess: [],
    overtakenAccess: [{ id: 'p', hostRevision: 5 }],
    toWake: ['p'],
  });
});

test('a host that does not know the tenant of a project gets its access again', () => {
  const projects = [{ project_id: 'p', access_revision: 3, needs_tenant: true as const }];
  expect(compare({ projects }, {})).toMatchObject({
    outdatedAccess: [],
    overtakenAccess: [],
    withoutTenant: ['p'],
    toWake: ['p'],
  });
});

test('what a host claims of projects of other hosts changes none of their records', () => {
  const projects = [0, 99].map((access_revision) => ({
    project_id: 'elsewhere',
    access_revision,
    needs_tenant: true as const,
  }));
  const snapshots = [{ project_id: 'elsewhere', snapshot_id: 's', ready: true, independent: true }];
  const claimed = { branches: [held('ready', 'b', 'elsewhere')], projects, snapshots };
  expect(compare(claimed, { branches: [] })).toEqual({
    orphans: [],
    misnamed: [],
    // Dropped on the host that claims it, if a job ever made it there.
    orphanedProjects: ['elsewhere'],
    missing: [],
    foundAgain: [],
    outdatedAccess: [],
    overtakenAccess: [],
    withoutTenant: [],
    toWake: [],
  });
});
