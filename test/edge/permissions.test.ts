import { describe, expect, test } from 'vitest';
import { type Action, allow, isChange } from '../../edge/permissions.ts';

const bearer = (role: string, scopes: string[]) => ({
  issuer: 'https://idp.example.com',
  gid: 'g-1',
  email: 'ada@example.com',
  role,
  scopes,
  service: 'branchgate',
  tenantId: 'acme',
  issuedAt: new Date(0),
  expiresAt: new Date(0),
});

function outcome(role: string, scopes: string[], action: Action): string {
  const allowed = allow(bearer(role, scopes), action);
  if (allowed.ok) return allowed.value;
  expect(allowed.failure.code).toBe('FORBIDDEN');
  return `needs ${allowed.failure.fields?.required}`;
}

const READ = ['branchgate:read'];
const WRITE = ['branchgate:write'];
const MAKERS = 'needs role owner, admin, operator';
const OWNERS = 'needs role owner';
const LEADERS = 'needs role owner, admin';

/** The permission table, cell by cell, for a token with the write scope. */
const CELLS: Record<Action, readonly [owner: string, admin: string, operator: string, viewer: string]> = {
  'project.create': ['all', 'all', 'all', MAKERS],
  'project.read': ['all', 'all', 'own', 'own'],
  'project.change': ['all', 'all', 'own', MAKERS],
  'branch.read': ['all', 'all', 'own', 'own'],
  'branch.change': ['all', 'all', 'own', MAKERS],
  'branch.protect': ['all', 'all', LEADERS, LEADERS],
  'credentials.read': ['all', 'all', 'own', MAKERS],
  'rows.read': ['all', 'all', 'own', 'own'],
  'rows.change': ['all', 'all', 'own', MAKERS],
  'credentials.rotate': ['all', 'all', 'own', MAKERS],
  'network_rules.read': ['all', 'all', 'own', 'own'],
  'network_rules.change': ['all', 'all', 'own', MAKERS],
  'metrics.read': ['all', 'all', 'own', 'own'],
  'jobs.read': ['all', 'all', 'own', 'own'],
  'events.read': ['all', 'all', 'own', 'own'],
  'webhooks.read': ['all', 'all', LEADERS, LEADERS],
  'webhooks.change': ['all', 'all', LEADERS, LEADERS],
  'masking.read': ['all', 'all', 'own', 'own'],
  'masking.change': ['all', 'all', LEADERS, LEADERS],
  'change.govern': ['all', 'all', LEADERS, LEADERS],
  'follow.change': ['all', 'all', LEADERS, LEADERS],
  'audit.read': ['all', 'all', LEADERS, LEADERS],
  'members.read': ['all', 'all', LEADERS, LEADERS],
  'members.change': ['all', 'all', LEADERS, LEADERS],
  'providers.read': ['all', OWNERS, OWNERS, OWNERS],
  'providers.change': ['all', OWNERS, OWNERS, OWNERS],
  'machines.read': ['all', 'all', LEADERS, LEADERS],
  'machines.change': ['all', 'all', LEADERS, LEADERS],
  'grants.read': ['all', 'all', 'own', 'own'],
  'grants.change': ['all', 'all', 'own', 'own'],
};

/** Actions that the read scope is sufficient for, if the role allows them. */
const READS: readonly Action[] = [
  'project.read',
  'branch.read',
  'rows.read',
  'network_rules.read',
  'metrics.read',
  'jobs.read',
  'events.read',
  'webhooks.read',
  'masking.read',
  'grants.read',
  'audit.read',
  'members.read',
  'providers.read',
  'machines.read',
];

describe.each(Object.keys(CELLS) as Action[])('%s', (action) => {
  test.each(['owner', 'admin', 'operator', 'viewer'] as const)('by %s', (role) => {
    const expected = CELLS[action][['owner', 'admin', 'operator', 'viewer'].indexOf(role)] ?? '';
    const allowed = !expected.startsWith('needs');
    expect(outcome(role, WRITE, action)).toBe(expected);
    expect(outcome(role, [...READ, ...WRITE], action)).toBe(expected);
    const reads = READS.includes(action);
    expect(outcome(role, READ, action)).toBe(allowed && !reads ? 'needs scope branchgate:write' : expected);
    const none = `needs scope branchgate:${reads ? 'read' : 'write'}`;
    for (const scopes of [[], ['other:write'], ['write'], ['branchgate:write '], ['branchgate:admin']]) {
      expect(outcome(role, scopes, action)).toBe(allowed ? none : expected);
    }
  });

  test.each(['auditor', '', 'OWNER', 'constructor', '__proto__'])(
    'by the unknown role "%s": never',
    (role) => {
      expect(outcome(role, [...READ, ...WRITE], action)).toMatch(/^needs role owner/);
    },
  );
});

test('every action that a viewer cannot use in a project takes more than seeing it', () => {
  const inProject = (Object.keys(CELLS) as Action[]).filter((action) => CELLS[action][2] === 'own');
  expect(inProject.filter(isChange)).toEqual(inProject.filter((action) => CELLS[action][3] !== 'own'));
});
