import { expect, test } from 'vitest';
import { mapRole } from '../../../edge/authentication/principal.ts';

test.each([
  ['platform.owner', 'owner'],
  ['org.team.admin', 'admin'],
  ['developer', 'operator'],
  ['senior-developer.eu', 'operator'],
  ['developer.admin', 'admin'],
  ['owner', 'owner'],
  ['viewer', 'viewer'],
  ['auditor', 'auditor'],
  ['owner.', 'owner.'],
  ['OWNER', 'OWNER'],
])('%s becomes %s', (given, role) => {
  expect(mapRole(given)).toBe(role);
});
