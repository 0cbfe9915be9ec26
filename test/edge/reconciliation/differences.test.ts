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
});
const held = (state: HeldState, branch_id = 'b', project_id = 'p') => ({
  project_id,
  branch_id,
  database: `db_${branch_id}`,
  state,
});

/** The host has obeyed revision 3 of the project's access. */
const compare = (inventory: Partial<Inventory>, records: Partial<HostRecords>) =>
  differencesBetween(
    { system_identifier: '1', branches: [], projects: [], ...inventory },
    new Map([['p', 3]]),
    { branches: [], projects: [{ id: 'p', accessRevision: 3, stale: false }], inWork: [], ...records },
  );

/** What becomes of a branch by its record (rows) and what the host holds of it; `-`: nothing. */
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

test.each(rows.flatMap(([status, ...verdicts]) => states.map((state, i) => [status, state, verdicts[i]])))(
  'record %s, host %s: %s',
  (status, state, verdict) => {
    const branches = state === 'none' ? [] : [held(state as HeldState)];
    const records = status === 'none' ? [] : [recorded(status as BranchStatus)];
    const { orphans, missing, foundAgain } = compare({ branches }, { branches: records });
    const named = { orphans: orphans.length, missing: missing.length, foundAgain: foundAgain.length };
    expect(named).toEqual({
      orphans: 0,
      missing: 0,
      foundAgain: 0,
      ...(verdict !== '-' && { [verdict ?? '']: 1 }),
    });
  },
);

test('what a job is about is left to it, and the job is woken', () => {
  const inWork = [{ projectId: 'p', branchId: 'b' }];
  const nothing = { orphans: [], orphanedProjects: [], missing: [], foundAgain: [], toWake: ['p'] };
  expect(compare({ branches: [held('building')] }, { inWork })).toMatchObject(nothing);
  expect(compare({ branches: [held('ready')] }, { inWork, branches: [recorded('failed')] })).toMatchObject(
    nothing,
  );
  expect(compare({ branches: [held('ready')] }, { inWork, projects: [] })).toMatchObject(nothing);
});

test('a project without a record goes as a whole, once', () => {
  const branches = [held('ready', 'b', 'stranger'), held('prepared', 'c', 'stranger')];
  const projects = [{ project_id: 'stranger', access_revision: 0 }];
  expect(compare({ branches, projects }, {})).toMatchObject({ orphans: [], orphanedProjects: ['stranger'] });
});

test('access that the host has lost is applied as a whole; what it is only not known to obey, as it is', () => {
  const at = (access_revision: number) => ({ projects: [{ project_id: 'p', access_revision }] });
  const stale = { projects: [{ id: 'p', accessRevision: 4, stale: true }] };
  expect(compare(at(3), {})).toMatchObject({ outdatedAccess: [], toWake: [] });
  expect(compare(at(2), {})).toMatchObject({ outdatedAccess: ['p'], toWake: ['p'] });
  // A fourth revision waits for the host, or came while it was asked.
  for (const revision of [3, 4])
    expect(compare(at(revision), stale)).toMatchObject({ outdatedAccess: [], toWake: ['p'] });
});

test('access that is newer on the host than on record is told anew', () => {
  const projects = [{ project_id: 'p', access_revision: 5 }];
  expect(compare({ projects }, {})).toMatchObject({
    outdatedAccess: [],
    overtakenAccess: [{ id: 'p', hostRevision: 5 }],
    toWake: ['p'],
  });
});
