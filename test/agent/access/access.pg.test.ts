import { afterAll, beforeAll, describe } from 'vitest';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { describeEnforcedAccess } from './enforce-access.ts';
import { describeHostileLogins } from './hostile-logins.ts';
import { describeStoredAccess } from './store-access.ts';
import { describeRules } from './sync-rules.ts';
import { describeWatchedLogins } from './watch-logins.ts';

/** Rules and logins, with projects of their own for each part. */
let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers?.stop());
const host = () => servers;

describe('rules', () => describeRules(host));
describe('stored access', () => describeStoredAccess(host));
describe('access in effect', () => describeEnforcedAccess(host));
describe('what a login can change of itself', () => describeWatchedLogins(host));
describe('hostile logins', () => describeHostileLogins(host));
