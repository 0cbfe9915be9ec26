import { eq } from 'drizzle-orm';
import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Database, openDatabase } from '../../../edge/database/database.ts';
import {
  auditEvents,
  hosts,
  jobs,
  networkRules,
  organizationMembers,
  organizations,
  projectBranches,
  projects,
  users,
} from '../../../edge/database/schema.ts';
import { unwrap } from '../../../edge/errors.ts';
import { materialize } from '../../../edge/tenancy/users.ts';
import { startD1 } from '../../support/records/d1.ts';

const NOW = new Date('2026-11-21T12:00:00Z');
const later = (seconds: number) => new Date(NOW.getTime() + seconds * 1000);

let d1: D1Database;
let db: Database;
/** A unique user, so that tests do not affect each other. */
let gid: string;
let tests = 0;

beforeAll(async () => {
  d1 = await startD1();
  db = openDatabase(d1);
  const host = { id: 'host', name: 'host', dbHost: 'db.example.com', directPort: 5432, pooledPort: 6432 };
  await db.insert(hosts).values({ ...host, createdAt: NOW });
});
beforeEach(() => {
  tests += 1;
  gid = `g-${tests}`;
});

const identity = (tenantId: string, issuedSeconds: number, more: { gid?: string; role?: string } = {}) => ({
  issuer: 'https://idp.example.com',
  gid,
  email: `${gid}@example.com`,
  role: 'operator',
  scopes: [],
  service: 'branchgate',
  tenantId: `${tenantId}-${tests}`,
  issuedAt: later(issuedSeconds),
  expiresAt: later(issuedSeconds + 900),
  ...more,
});
const tenant = (name: string) => `${name}-${tests}`;

/**
 * The database as seen by one isolate, with its own cache and a record of its statements.
 * @param meanwhile runs after the isolate has read and before it writes
 */
function isolate(meanwhile: () => Promise<unknown> = async () => {}) {
  const sent: string[] = [];
  const binding = new Proxy(d1, {
    get(target, property) {
      const value: unknown = Reflect.get(target, property);
      if (typeof value !== 'function') return value;
      return (...given: unknown[]) => {
        if (property === 'prepare') sent.push(String(given[0]));
        if (property === 'batch') return meanwhile().then(() => Reflect.apply(value, target, given));
        return Reflect.apply(value, target, given);
      };
    },
  });
  return {
    see: async (token: ReturnType<typeof identity>, seconds = 0) =>
      unwrap(await materialize(binding, token, later(seconds))),
    /** Verbs of the statements since the last call. */
    verbs: () => sent.splice(0).map((statement) => statement.trim().split(' ')[0]),
  };
}

const userRows = () => db.select().from(users).where(eq(users.gid, gid));
const membershipsOf = (userId: string) =>
  db
    .select({ tenantId: organizations.idpTenantId, role: organizationMembers.role })
    .from(organizationMembers)
    .innerJoin(organizations, eq(organizations.id, organizationMembers.organizationId))
    .where(eq(organizationMembers.userId, userId));

describe('a new user', () => {
  test('is created with organization and membership in one batch', async () => {
    const { see, verbs } = isolate();
    const principal = await see(identity('acme', 0));
    expect(verbs()).toEqual(['select', 'insert', 'insert', 'insert', 'select']);
    const [user] = await userRows();
    expect(principal).toEqual({ ...identity('acme', 0), userId: user?.id });
    expect(user).toMatchObject({ tenantId: tenant('acme'), role: 'operator', tenantSeenAt: later(0) });
    expect(await membershipsOf(principal.userId)).toEqual([{ tenantId: tenant('acme'), role: 'operator' }]);
  });

  test('20 concurrent requests in as many isolates create one of each', async () => {
    const seen = await Promise.all(Array.from({ length: 20 }, () => isolate().see(identity('acme', 0))));
    expect(new Set(seen.map(({ userId }) => userId)).size).toBe(1);
    expect(await userRows()).toHaveLength(1);
    expect(
      await db
        .select()
        .from(organizations)
        .where(eq(organizations.idpTenantId, tenant('acme'))),
    ).toHaveLength(1);
    expect(await membershipsOf(seen[0]?.userId ?? '')).toHaveLength(1);
  });

  test('two users of one tenant share its organization; the same gid of another issuer is another user', async () => {
    const { see } = isolate();
    const ada = await see(identity('acme', 0));
    const grace = await see(identity('acme', 0, { gid: `${gid}-b` }));
    const other = await see({ ...identity('acme', 0), issuer: 'https://other.example.com' });
    expect(new Set([ada.userId, grace.userId, other.userId]).size).toBe(3);
    expect(
      await db
        .select()
        .from(organizations)
        .where(eq(organizations.idpTenantId, tenant('acme'))),
    ).toHaveLength(1);
  });
});

describe('a known user', () => {
  test('costs nothing for 30 s, then one read', async () => {
    const { see, verbs } = isolate();
    const first = await see(identity('acme', 0));
    verbs();
    expect(await see(identity('acme', 0), 29)).toEqual(first);
    expect(verbs()).toEqual([]);
    expect(await see(identity('acme', 0), 30)).toEqual(first);
    expect(verbs()).toEqual(['select']);
    await see(identity('acme', 0), 59);
    expect(verbs()).toEqual([]);
  });

  test('in another isolate costs one read', async () => {
    await isolate().see(identity('acme', 0));
    const { see, verbs } = isolate();
    await see(identity('acme', 0));
    expect(verbs()).toEqual(['select']);
  });

  test('an older token of the same tenant is accepted and changes nothing', async () => {
    const { see, verbs } = isolate();
    await see(identity('acme', 100, { role: 'admin' }));
    verbs();
    expect((await see(identity('acme', 50, { role: 'viewer' }))).role).toBe('viewer');
    expect(verbs()).toEqual([]);
    expect((await userRows())[0]?.role).toBe('admin');
  });

  test('a token does not overwrite the role of a concurrent newer one', async () => {
    const { userId } = await isolate().see(identity('acme', 0));
    const overtaken = isolate(() => isolate().see(identity('acme', 5, { role: 'admin' })));
    await overtaken.see(identity('acme', 2, { role: 'viewer' }));
    expect((await userRows())[0]).toMatchObject({ role: 'admin', tenantSeenAt: later(5) });
    expect(await membershipsOf(userId)).toEqual([{ tenantId: tenant('acme'), role: 'admin' }]);
  });

  test('a newer token updates role and e-mail', async () => {
    const { see } = isolate();
    const { userId } = await see(identity('acme', 0));
    await see({ ...identity('acme', 1, { role: 'admin' }), email: 'new@example.com' });
    expect((await userRows())[0]).toMatchObject({ id: userId, role: 'admin', email: 'new@example.com' });
    expect(await membershipsOf(userId)).toEqual([{ tenantId: tenant('acme'), role: 'admin' }]);
  });
});

/** A project with a branch, a rule, a job and audit events, created by one user and branched by another. */
async function makeProject(ownerId: string, visitorId: string, tenantId: string) {
  const id = crypto.randomUUID();
  const times = { createdAt: NOW, updatedAt: NOW };
  const actor = { userId: visitorId, email: 'e', tenantId, ip: null, userAgent: null, requestId: 'r' };
  await db.insert(projects).values({
    id,
    name: 'p',
    appKey: id.replaceAll('-', ''),
    env: 'prod',
    status: 'active',
    hostId: 'host',
    createdBy: ownerId,
    tenantId,
    ...times,
  });
  await db.insert(projectBranches).values({
    id: crypto.randomUUID(),
    projectId: id,
    branchName: 'feature',
    databaseName: `db_${id}`,
    sourceDatabase: 'db',
    status: 'active',
    lifespan: '7d',
    createdBy: visitorId,
    tenantId,
    ...times,
  });
  await db.insert(networkRules).values({
    id: crypto.randomUUID(),
    projectId: id,
    cidr: '192.0.2.0/24',
    source: 'manual',
    revision: 1,
    createdBy: visitorId,
    tenantId,
    createdAt: NOW,
  });
  await db.insert(jobs).values({
    id: crypto.randomUUID(),
    projectId: id,
    kind: 'branch.create',
    input: { actor },
    status: 'running',
    steps: [],
    hostId: 'host',
    createdBy: visitorId,
    tenantId,
    ...times,
  });
  await audit('project.created', ownerId, tenantId, id);
  await audit('branch.created', visitorId, tenantId, id);
  return id;
}

const audit = (name: string, actorId: string, tenantId: string, projectId: string | null) =>
  db.insert(auditEvents).values({
    id: crypto.randomUUID(),
    name,
    actorId,
    tenantId,
    projectId,
    metadata: {},
    createdAt: NOW,
  });

/** The tenants of all records of the project. */
async function tenantsOf(projectId: string): Promise<string[]> {
  const [project, branches, rules, jobRows, events] = await Promise.all([
    db.select().from(projects).where(eq(projects.id, projectId)),
    db.select().from(projectBranches).where(eq(projectBranches.projectId, projectId)),
    db.select().from(networkRules).where(eq(networkRules.projectId, projectId)),
    db.select().from(jobs).where(eq(jobs.projectId, projectId)),
    db.select().from(auditEvents).where(eq(auditEvents.projectId, projectId)),
  ]);
  const records = [...project, ...branches, ...rules, ...jobRows, ...events];
  const named = [
    ...records.map(({ tenantId }) => tenantId),
    ...jobRows.map(({ input }) => input.actor.tenantId),
  ];
  return [...new Set(named)];
}

describe('a changed tenant', () => {
  test('moves the projects of the user with all their records in one batch', async () => {
    const { see, verbs } = isolate();
    const ada = await see(identity('acme', 0));
    const bob = await see(identity('acme', 0, { gid: `${gid}-bob` }));
    const project = await makeProject(ada.userId, bob.userId, tenant('acme'));
    const visited = await makeProject(bob.userId, ada.userId, tenant('acme'));
    await audit('branchgate.cli.login', ada.userId, tenant('acme'), null);
    verbs();

    const moved = await see(identity('globex', 1));
    expect(moved).toMatchObject({ userId: ada.userId, tenantId: tenant('globex') });
    expect(verbs().filter((verb) => verb === 'select')).toHaveLength(2);
    expect((await userRows())[0]).toMatchObject({ tenantId: tenant('globex'), tenantSeenAt: later(1) });
    expect(await membershipsOf(ada.userId)).toEqual([{ tenantId: tenant('globex'), role: 'operator' }]);
    expect(await tenantsOf(project)).toEqual([tenant('globex')]);

    // Her actions in a project of Bob belong to the tenant of Bob.
    expect(await tenantsOf(visited)).toEqual([tenant('acme')]);
    expect(await membershipsOf(bob.userId)).toEqual([{ tenantId: tenant('acme'), role: 'operator' }]);
    const login = await db.select().from(auditEvents).where(eq(auditEvents.name, 'branchgate.cli.login'));
    expect(login.map(({ tenantId }) => tenantId)).toEqual([tenant('globex')]);
  });

  test('moves the remaining records of a deleted project', async () => {
    const { see } = isolate();
    const ada = await see(identity('acme', 0));
    const bob = await see(identity('acme', 0, { gid: `${gid}-bob` }));
    const own = await makeProject(ada.userId, bob.userId, tenant('acme'));
    const visited = await makeProject(bob.userId, ada.userId, tenant('acme'));
    for (const id of [own, visited]) await db.delete(projects).where(eq(projects.id, id));
    await see(identity('globex', 1));
    expect(await tenantsOf(own)).toEqual([tenant('globex')]);
    expect(await tenantsOf(visited)).toEqual([tenant('acme')]);
  });

  test('is rejected for a token that is older or of the same age, and nothing moves', async () => {
    const here = isolate();
    const ada = await here.see(identity('acme', 10));
    const project = await makeProject(ada.userId, ada.userId, tenant('acme'));
    for (const issuedSeconds of [9, 10]) {
      const attempt = isolate().see(identity('globex', issuedSeconds));
      await expect(attempt).rejects.toMatchObject({
        failure: { code: 'UNAUTHENTICATED' },
        message: 'token_of_former_tenant',
      });
    }
    expect((await userRows())[0]?.tenantId).toBe(tenant('acme'));
    expect(await tenantsOf(project)).toEqual([tenant('acme')]);
    expect(
      await db
        .select()
        .from(organizations)
        .where(eq(organizations.idpTenantId, tenant('globex'))),
    ).toEqual([]);
  });

  test('invalidates tokens of the former tenant: here immediately, elsewhere within 30 s', async () => {
    const here = isolate();
    const elsewhere = isolate();
    await here.see(identity('acme', 0));
    await elsewhere.see(identity('acme', 0));
    await here.see(identity('globex', 1), 5);
    await expect(here.see(identity('acme', 0), 5)).rejects.toThrow('token_of_former_tenant');
    expect((await elsewhere.see(identity('acme', 0), 29)).tenantId).toBe(tenant('acme'));
    await expect(elsewhere.see(identity('acme', 0), 30)).rejects.toThrow('token_of_former_tenant');
    expect((await here.see(identity('globex', 1), 31)).tenantId).toBe(tenant('globex'));
  });

  test('can be reverted by a newer token', async () => {
    const { see } = isolate();
    const ada = await see(identity('acme', 0));
    const project = await makeProject(ada.userId, ada.userId, tenant('acme'));
    await see(identity('globex', 1));
    await see(identity('acme', 2));
    expect(await tenantsOf(project)).toEqual([tenant('acme')]);
    expect(await membershipsOf(ada.userId)).toHaveLength(1);
  });

  test('is not applied by a token that was superseded between reading and writing', async () => {
    const ada = await isolate().see(identity('acme', 0));
    const project = await makeProject(ada.userId, ada.userId, tenant('acme'));
    const overtaken = isolate(() => isolate().see(identity('acme', 5)));
    await expect(overtaken.see(identity('globex', 2))).rejects.toThrow('token_of_former_tenant');
    expect((await userRows())[0]).toMatchObject({ tenantId: tenant('acme'), tenantSeenAt: later(5) });
    expect(await tenantsOf(project)).toEqual([tenant('acme')]);
    expect(await membershipsOf(ada.userId)).toHaveLength(1);
  });

  test('starts from the current tenant of the user, not from the one that was read', async () => {
    const ada = await isolate().see(identity('acme', 0));
    const project = await makeProject(ada.userId, ada.userId, tenant('acme'));
    const overtaken = isolate(() => isolate().see(identity('initech', 5)));
    await overtaken.see(identity('globex', 7));
    expect(await tenantsOf(project)).toEqual([tenant('globex')]);
    expect(await membershipsOf(ada.userId)).toEqual([{ tenantId: tenant('globex'), role: 'operator' }]);
  });

  test('ends with the newest of concurrent tokens of different tenants in all records', async () => {
    const ada = await isolate().see(identity('acme', 0));
    const owned = await Promise.all([1, 2].map(() => makeProject(ada.userId, ada.userId, tenant('acme'))));
    const order = [3, 1, 5, 2, 4, 5, 1, 3];
    const outcomes = await Promise.allSettled(
      order.map((age) => isolate().see(identity(`tenant${age}`, age))),
    );
    expect(outcomes.filter(({ status }) => status === 'fulfilled').length).toBeGreaterThanOrEqual(2);
    expect((await userRows())[0]).toMatchObject({ tenantId: tenant('tenant5'), tenantSeenAt: later(5) });
    expect(await membershipsOf(ada.userId)).toEqual([{ tenantId: tenant('tenant5'), role: 'operator' }]);
    for (const id of owned) expect(await tenantsOf(id)).toEqual([tenant('tenant5')]);
  });
});
