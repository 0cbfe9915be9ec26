import { eq } from 'drizzle-orm';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { projectBranches, projects, users } from '../../../edge/database/schema.ts';
import type { ProjectRequest } from '../../../edge/projects/coordinator-rpc.ts';
import { reserveProject } from '../../../edge/projects/reserve-project.ts';
import { readSettings } from '../../../edge/settings.ts';
import { maxSlugLength } from '../../../shared/branch/database-name.ts';
import { AppKey } from '../../../shared/project/project-name.ts';
import { ACTOR, startRecords } from '../../support/records/records.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const { db, stop } = await startRecords();
afterAll(stop);

const OTHER = { ...ACTOR, userId: 'v', tenantId: 'other' };

beforeEach(async () => {
  await db.delete(projects);
  const [user] = await db.select().from(users).where(eq(users.id, ACTOR.userId));
  if (!user) throw new Error('no user');
  await db
    .insert(users)
    .values({ ...user, id: OTHER.userId, gid: 'v', tenantId: OTHER.tenantId })
    .onConflictDoNothing();
});

/** @param change of the request */
async function create(change: Partial<ProjectRequest> = {}, settings: Record<string, string> = {}) {
  const projectId = crypto.randomUUID();
  const request: ProjectRequest = {
    jobId: crypto.randomUUID(),
    projectId,
    mainBranchId: crypto.randomUUID(),
    name: 'Shop',
    requestedAppKey: 'shop',
    env: 'prod',
    storageQuotaGib: 0.25,
    hostId: 'h',
    actor: ACTOR,
    keyUse: null,
    ...change,
  };
  const reserved = await reserveProject(db, readSettings({ ...SETTINGS, ...settings }), request, new Date());
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

test('a user who has moved to another tenant creates nothing in the former one', async () => {
  expect(await create({ actor: { ...ACTOR, tenantId: 'former' } })).toMatchObject({
    failure: { code: 'UNAUTHENTICATED' },
    appKey: undefined,
  });
});
