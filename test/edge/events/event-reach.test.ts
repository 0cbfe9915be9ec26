import { describe, expect, test } from 'vitest';
import { isInReach } from '../../../edge/events/event-streams.ts';

const scope = (names: string[], machine_id: string | null = null, tenant_id = 't') => ({
  tenant_id,
  branch_names: JSON.stringify(names),
  machine_id,
});

const caller = (branchPattern: string | null) => ({
  tenantId: 't',
  machine: {
    type: 'key' as const,
    id: 'k',
    creatorRole: 'owner',
    permissions: [],
    projectId: null,
    branchPattern,
  },
});

describe('a machine limited to pr-*', () => {
  test.each([
    ['a branch that matches', scope(['pr-1']), true],
    ['a batch of which all match', scope(['pr-1', 'pr-2']), true],
    ['a batch of which one does not', scope(['pr-1', 'free']), false],
    ['another branch', scope(['free']), false],
    ['a branch with the pattern inside', scope(['xpr-1']), false],
    ['the project, or main', scope([]), false],
    ['its own job, whose branch has no record any more', scope([], 'k'), true],
    ['the job of another machine', scope([], 'other'), false],
    ['a branch that matches, in another tenant', scope(['pr-1'], null, 'other'), false],
    ['its own job, in another tenant', scope([], 'k', 'other'), false],
  ])('sees the event of %s: %#', (_, event, seen) => {
    expect(isInReach(event, caller('pr-*'))).toBe(seen);
  });
});

test.each([
  ['a person', { tenantId: 't' }],
  ['a machine without a pattern', caller(null)],
])('%s sees every event of the tenant, and none of another', (_, whoever) => {
  for (const names of [[], ['pr-1'], ['free']]) {
    expect(isInReach(scope(names), whoever)).toBe(true);
    expect(isInReach(scope(names, null, 'other'), whoever)).toBe(false);
  }
});
