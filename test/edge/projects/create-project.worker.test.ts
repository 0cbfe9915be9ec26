import { eq, sql } from 'drizzle-orm';
import { beforeEach, describe, expect, test } from 'vitest';
import { accounts } from '../../../edge/database/people-schema.ts';
import {
  auditEvents,
  hosts,
  organizations,
  projectBranches,
  projects,
  tenantCaps,
  users,
} from '../../../edge/database/schema.ts';
import { offersExtensions } from '../../../edge/hosts/host.ts';
import { type ProjectRequest, reserveProject } from '../../../edge/projects/create-project.ts';
import { readSettings } from '../../../edge/settings.ts';
import { changeTenantCaps } from '../../../edge/tenancy/tenant-caps.ts';
import { maxSlugLength } from '../../../shared/branch/database-name.ts';
import { AppKey } from '../../../shared/project/project-name.ts';
import type { HostDescription } from '../../../shared/protocol/host-description.ts';
import { ACTOR, startRecords } from '../../support/records/records.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const { db } = await startRecords();

const settings = readSettings(SETTINGS);

const OTHER = { ...ACTOR, userId: 'v', tenantId: 'other' };

beforeEach(async () => {
  await db.delete(projects);
  await db.delete(accounts);
  await db.delete(tenantCaps);
  const [user] = await db.select().from(users).where(eq(users.id, ACTOR.userId));
  if (!user) throw new Error('no user');
  await db
    .insert(users)
    .values({ ...user, id: OTHER.userId, gid: 'v', tenantId: OTHER.tenantId })
    .onConflictDoNothing();
});

async function create(change: Partial<ProjectRequest> = {}) {
  const projectId = crypto.randomUUID();
  const request: ProjectRequest = {
    jobId: crypto.randomUUID(),
    projectId,
    mainBranchId: crypto.randomUUID(),
    name: 'Shop',
    requestedAppKey: 'shop',
    env: 'prod',
    storageQuotaGib: 0.25,
    extensions: [],
    hostId: 'h',
    actor: ACTOR,
    keyUse: null,
    ...change,
  };
  const reserved = await reserveProject(db, settings, request, new Date());
  const [project] = await db.select().from(projects).where(eq(projects.id, projectId));
  const [main] = await db.select().from(projectBranches).where(eq(projectBranches.projectId, projectId));
  return {
    projectId,
    failure: reserved.ok ? null : reserved.failure,
    appKey: project?.appKey,
    database: main?.databaseName,
  };
}

describe('an app key', () => {
  test('is refused if a project of the same tenant has it, and nothing is stored', async () => {
    expect(await create()).toMatchObject({ failure: null, appKey: 'shop', database: 'db_shop_prod' });
    expect(await create()).toMatchObject({ failure: { code: 'PROJECT_EXISTS' }, appKey: undefined });
    expect(await create({ env: 'test' })).toMatchObject({ failure: null, appKey: 'shop' });
    expect(await db.$count(projects)).toBe(2);
  });

  test('that another tenant uses gets a random suffix, and is then refused within the tenant', async () => {
    await create({ actor: OTHER });
    const mine = await create();
    expect(mine.failure).toBeNull();
    expect(mine.appKey).toMatch(/^shop_[a-z0-9]{4}$/);
    expect(mine.database).toBe(`db_${mine.appKey}_prod`);
    expect(await create()).toMatchObject({ failure: { code: 'PROJECT_EXISTS' } });
    expect(await create({ requestedAppKey: mine.appKey ?? '' })).toMatchObject({
      failure: { code: 'PROJECT_EXISTS' },
    });
    expect((await create({ actor: OTHER })).failure).toEqual({ code: 'PROJECT_EXISTS' });
  });

  test('is unique when two tenants request it at the same time', async () => {
    const both = await Promise.all([create(), create({ actor: OTHER })]);
    expect(both.map(({ failure }) => failure)).toEqual([null, null]);
    expect(new Set(both.map(({ database }) => database)).size).toBe(2);
  });

  test('is available again after its creation failed', async () => {
    const { projectId } = await create({ actor: OTHER });
    await db.update(projects).set({ status: 'failed' }).where(eq(projects.id, projectId));
    await db
      .update(projectBranches)
      .set({ status: 'failed' })
      .where(eq(projectBranches.projectId, projectId));
    expect((await create()).appKey).toBe('shop');
  });

  test('whose main database belongs to a branch record gets a suffix too', async () => {
    const { projectId } = await create({ actor: OTHER });
    await db.update(projects).set({ appKey: 'renamed' }).where(eq(projects.id, projectId));
    expect((await create()).appKey).toMatch(/^shop_[a-z0-9]{4}$/);
  });

  test('is derived from the name if none was requested, also for equal names', async () => {
    const keys = await Promise.all([1, 2].map(() => create({ requestedAppKey: null })));
    for (const { appKey } of keys) expect(appKey).toMatch(/^shop_[a-z0-9]{4}$/);
  });

  test.each([
    ['a'.repeat(48), 'prod'],
    ['a'.repeat(45), 'staging'],
    [`${'a'.repeat(39)}_bracket`, 'prod'],
    [`${'a'.repeat(42)}_b_c`, 'prod'],
  ])('of any length remains valid with its suffix and leaves room for branches: %s, %s', async (key, env) => {
    await create({ actor: OTHER, requestedAppKey: key, env });
    const { appKey = '' } = await create({ requestedAppKey: key, env });
    expect(appKey).not.toBe(key);
    expect(AppKey.safeParse(appKey).success).toBe(true);
    expect(maxSlugLength(appKey, env)).toBeGreaterThanOrEqual(3);
  });
});

describe('the extensions of a project', () => {
  const offered = async (description: object | null, names: string[]) => {
    await db.update(hosts).set({ description: description as HostDescription | null });
    const [row] = await db
      .select({ offers: sql`${offersExtensions('h', names)}`.mapWith(Boolean) })
      .from(hosts);
    return row?.offers;
  };
  const POSTGIS = { project_extensions: [{ name: 'postgis', version: '3.6.0' }] };

  test.each<[object | null, string[], boolean]>([
    [POSTGIS, ['postgis'], true],
    [POSTGIS, ['postgis', 'vector'], false],
    [POSTGIS, [], true],
    [{ project_extensions: [] }, ['postgis'], false],
    [{ project_extensions: null }, ['postgis'], false],
    [{}, ['postgis'], false],
    [{}, [], true],
    [null, ['postgis'], false],
    [null, [], true],
  ])('of a host that reports %j, %j are offered: %s', async (description, names, expected) => {
    expect(await offered(description, names)).toBe(expected);
  });

  test('are recorded with it', async () => {
    const { projectId } = await create({ extensions: ['postgis'] });
    const [row] = await db.select().from(projects).where(eq(projects.id, projectId));
    expect(row?.extensions).toEqual(['postgis']);
  });
});

describe('the caps of a tenant', () => {
  const another = (change: Partial<ProjectRequest> = {}) => create({ requestedAppKey: null, ...change });
  const failures = async (count: number, change?: Partial<ProjectRequest>) => {
    const made = await Promise.all(Array.from({ length: count }, () => another(change)));
    return made.flatMap(({ failure }) => failure ?? []);
  };
  const signUp = (tenantId: string) =>
    db.insert(accounts).values({
      id: 'a',
      email: 'a@example.com',
      name: 'A',
      passwordHash: '',
      role: 'owner',
      tenantId,
      createdAt: new Date(),
      updatedAt: new Date(),
    });

  test('are 10 projects, also when they are requested at the same time', async () => {
    const refused = await failures(12);
    const fields = { limit: 10, current: 10, retry_after: null };
    expect(refused).toEqual(Array(2).fill({ code: 'PROJECT_LIMIT_REACHED', fields }));
    expect((await another({ actor: OTHER })).failure).toBeNull();
    await db.update(projects).set({ status: 'deleting' });
    expect(await failures(1)).toHaveLength(1);
    await db.update(projects).set({ status: 'failed' });
    expect(await failures(1)).toEqual([]);
  });

  test('are 20 GiB of quotas together, also when they are requested at the same time', async () => {
    const refused = await failures(6, { storageQuotaGib: 5 });
    const fields = { limit: 20, current: 20, retry_after: null };
    expect(refused).toEqual(Array(2).fill({ code: 'TENANT_QUOTA_REACHED', fields }));
  });

  test('end where the free disk of the host is promised, also when requests are concurrent', async () => {
    await db.update(hosts).set({ freeBytes: 2.5 * 2 ** 30 });
    const refused = await failures(6, { storageQuotaGib: 1 });
    await db.update(hosts).set({ freeBytes: null });
    expect(refused).toEqual(Array(4).fill({ code: 'HOST_FULL' }));
  });

  test('leave a host its capacity, also when requests are concurrent', async () => {
    await db.update(hosts).set({ capacity: 2 });
    const refused = await failures(6);
    await db.update(hosts).set({ capacity: null });
    expect(refused).toEqual(Array(4).fill({ code: 'HOST_FULL' }));
  });

  test('are 3 projects and 1 GiB for an account of the gateway', async () => {
    await signUp(ACTOR.tenantId);
    expect((await another({ storageQuotaGib: 1.1 })).failure).toMatchObject({
      code: 'TENANT_QUOTA_REACHED',
      fields: { limit: 1, current: 0 },
    });
    expect(await failures(4, { storageQuotaGib: 0.1 })).toMatchObject([
      { code: 'PROJECT_LIMIT_REACHED', fields: { limit: 3 } },
    ]);
    expect((await another({ actor: OTHER, storageQuotaGib: 5 })).failure).toBeNull();
  });

  test('add decimal fractions exactly', async () => {
    await signUp(ACTOR.tenantId);
    expect(await failures(1, { storageQuotaGib: 0.7 })).toEqual([]);
    expect(await failures(1, { storageQuotaGib: 0.1 })).toEqual([]);
    expect(await failures(1, { storageQuotaGib: 0.2 })).toEqual([]);
  });

  test('are replaced by those that the platform sets, which is audited', async () => {
    const set = (tenantId: string, caps: Parameters<typeof changeTenantCaps>[3]) =>
      changeTenantCaps(db, settings, tenantId, caps, { ip: '192.0.2.1', requestId: 'r' });
    expect(await set(ACTOR.tenantId, { project_limit: 1 })).toMatchObject({ failure: { code: 'NOT_FOUND' } });
    expect(await db.$count(tenantCaps)).toBe(0);
    const organization = { id: 'o', idpTenantId: ACTOR.tenantId, createdAt: new Date() };
    await db.insert(organizations).values(organization);
    expect(await set(ACTOR.tenantId, { project_limit: 12, storage_quota_limit_gib: 60 })).toEqual({
      ok: true,
      value: {
        tenant_id: ACTOR.tenantId,
        project_limit: 12,
        project_count: 0,
        storage_quota_limit_gib: 60,
        storage_quota_gib: 0,
      },
    });
    expect(await failures(13, { storageQuotaGib: 5 })).toMatchObject([
      { code: 'PROJECT_LIMIT_REACHED', fields: { limit: 12, current: 12 } },
    ]);
    expect(await set(ACTOR.tenantId, { project_limit: 13 })).toMatchObject({
      value: { project_limit: 13, project_count: 12, storage_quota_limit_gib: 20, storage_quota_gib: 60 },
    });
    expect(await failures(1)).toMatchObject([
      { code: 'TENANT_QUOTA_REACHED', fields: { limit: 20, current: 60 } },
    ]);
    const events = await db.select().from(auditEvents).where(eq(auditEvents.name, 'tenant.caps.changed'));
    expect(events.map(({ tenantId, actorId, ip }) => ({ tenantId, actorId, ip }))).toEqual(
      Array(2).fill({ tenantId: ACTOR.tenantId, actorId: null, ip: '192.0.2.1' }),
    );
    expect(events.map(({ metadata }) => metadata)).toContainEqual({
      from: { project_limit: 12, storage_quota_limit_gib: 60 },
      to: { project_limit: 13, storage_quota_limit_gib: null },
    });
  });
});

test('a user who has moved to another tenant creates nothing in the former one', async () => {
  expect(await create({ actor: { ...ACTOR, tenantId: 'former' } })).toMatchObject({
    failure: { code: 'UNAUTHENTICATED' },
    appKey: undefined,
  });
});
