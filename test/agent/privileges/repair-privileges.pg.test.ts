import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { runPrivilegeLoop } from '../../../agent/privileges/repair-privileges.ts';
import { groupName, loginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  connect,
  type Project,
  startHostWithProject,
} from '../../support/host/host-project.ts';

let servers: TestHost;
let project: Project;
let main: Branch;
let events: Record<string, unknown>[];

beforeAll(async () => {
  ({ servers, project, main } = await startHostWithProject('db_defaults_prod', 'CREATE TABLE t (x int)'));
  servers.host.log = (event, fields) => events.push({ event, ...fields });
});
afterAll(() => servers.stop());
beforeEach(() => {
  events = [];
});

const asOwner = (branch: Branch, sql: string) => asClient(servers.host, 'direct', branch, 'owner', sql);

/** Default privileges of the owner's group, as text. */
const defaults = (branch: Branch) =>
  asOwner(
    branch,
    `SELECT defaclobjtype, acl::text FROM pg_default_acl, unnest(defaclacl) AS acl
     WHERE defaclnamespace = 0 ORDER BY 1, 2`,
  );

const dropGroups = async (branch: Branch) => {
  for (const role of ['read_only', 'read_write'] as const)
    await asClient(
      servers.host,
      'direct',
      branch,
      role,
      `DROP OWNED BY ${groupName(branch.project_id, role)}`,
    );
};

/** Runs the loop until it reports this about main; without an event, for as long as a round takes. */
async function repairAll(event?: string) {
  const ending = new AbortController();
  const loop = runPrivilegeLoop(servers.host, ending.signal);
  if (event === undefined) await sleep(1_000);
  else
    await eventually(async () =>
      expect(events).toContainEqual(expect.objectContaining({ event, branch_id: main.branch_id })),
    );
  ending.abort();
  await loop;
}

test('default privileges that logins have dropped are granted again by the agent, and in every clone', async () => {
  const before = await defaults(main);
  expect(before.length).toBeGreaterThan(5);
  await dropGroups(main);
  expect(await defaults(main)).not.toEqual(before);
  // Rights on existing tables are the owner's grants, which no other login can revoke.
  await asClient(servers.host, 'direct', main, 'read_only', 'SELECT * FROM t');
  await asClient(servers.host, 'direct', main, 'read_write', 'INSERT INTO t VALUES (1)');
  const clone = await project.create('db_defaults_prod_br_one', main.database);
  expect(await defaults(clone)).toEqual(before);
  expect(events).toEqual([
    {
      event: 'privileges.repaired',
      branch_id: clone.branch_id,
      groups: expect.arrayContaining(['read_only', 'read_write']),
    },
  ]);
  await asOwner(clone, 'CREATE SCHEMA own; CREATE TABLE own.t (x int)');
  await asClient(servers.host, 'direct', clone, 'read_only', 'SELECT * FROM own.t');
  await asClient(servers.host, 'direct', clone, 'read_write', 'INSERT INTO own.t VALUES (1)');

  await repairAll('privileges.repaired');
  expect(await defaults(main)).toEqual(before);
  events = [];
  await repairAll();
  expect(events, 'nothing is repaired twice').toEqual([]);
});

test('privileges that the owner has narrowed stay, and settings of the owner login do not prevent a repair', async () => {
  const group = groupName(project.id, 'read_only');
  await asOwner(main, `ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM ${group}`);
  const narrowed = await defaults(main);
  await repairAll();
  expect(await defaults(main)).toEqual(narrowed);
  await asOwner(main, `ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO ${group}`);

  const before = await defaults(main);
  await dropGroups(main);
  const login = loginName(main.branch_id, 'owner');
  await asOwner(
    main,
    `SET ROLE NONE; ALTER ROLE ${login} SET default_transaction_read_only = on;
     ALTER ROLE ${login} SET statement_timeout = 1; ALTER ROLE ${login} SET role = none;
     ALTER ROLE ${login} SET local_preload_libraries = 'nope'`,
  );
  await repairAll('privileges.repaired');
  expect(events).toMatchObject([{ event: 'privileges.repaired', branch_id: main.branch_id }]);
  await servers.query(`ALTER ROLE ${login} RESET ALL`);
  expect(await defaults(main)).toEqual(before);
});

test('a tenant that prevents the repair delays it for a bounded time, and does not prevent a branch', async () => {
  await dropGroups(main);
  const holder = await connect(servers.host, 'direct', main, 'owner');
  await holder.query(
    `BEGIN; ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO ${groupName(project.id, 'read_only')}`,
  );
  await repairAll('privileges.unrepaired');
  expect(events).toMatchObject([
    { event: 'privileges.unrepaired', branch_id: main.branch_id, reason: expect.stringContaining('timeout') },
  ]);
  await holder.query('ROLLBACK');
  await holder.end();
  await repairAll('privileges.repaired');
});
