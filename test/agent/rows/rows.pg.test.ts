import { afterAll, beforeAll, describe } from 'vitest';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { describeBranchSessions } from './branch-session.ts';
import { describeEditing } from './editing.ts';
import { describeHostileTenants } from './hostile-tenants.ts';
import { describePages } from './pages.ts';
import { describeQueries } from './queries.ts';
import { describeTables } from './tables.ts';
import { describeValues } from './values.ts';

/** The table browser and queries, with a project for each part. */
let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers?.stop());
const host = () => servers;

describe('tables', () => describeTables(host));
describe('pages', () => describePages(host));
describe('values', () => describeValues(host));
describe('editing', () => describeEditing(host));
describe('queries', () => describeQueries(host));
describe('sessions of a branch', () => describeBranchSessions(host));
describe('hostile tenants', () => describeHostileTenants(host));
