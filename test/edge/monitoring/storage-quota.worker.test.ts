import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { projects } from '../../../edge/database/schema.ts';
import { PROJECT_FILES_MAX } from '../../../shared/limits.ts';
import { eventually } from '../../support/eventually.ts';
import { type MeasuredProject, MIB, measuredProject } from '../../support/host/measured-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { type MonitorGateway, startMonitorGateway } from '../../support/worker/monitor-gateway.ts';

let gateway: MonitorGateway;
let project: MeasuredProject;
let main: string;

beforeAll(async () => {
  gateway = await startMonitorGateway();
});
afterAll(() => gateway?.stop());
beforeEach(async () => {
  project = await measuredProject(gateway);
  main = await project.branch('main');
});

const subjects = () =>
  gateway.mails.posted
    .filter(({ body }) => body.text.includes(project.id))
    .map(({ body }) => body.subject.split(':')[0]);

const mailed = (...expected: string[]) =>
  eventually(async () => {
    expect(subjects().sort()).toEqual(expected.sort());
    expect((await project.inspect()).kept.outbox).toBeUndefined();
  });

const state = async () => {
  const { storageState, storageUsedBytes, accessRevision } = await project.row();
  return { storageState, used: storageUsedBytes / MIB, accessRevision };
};

describe('the state', () => {
  test('follows the usage up and down; the access gets a new revision when writing is blocked or unblocked', async () => {
    const seen = [];
    for (const mib of [700, 800, 801, 799, 900, 1000, 1100, 999, 100]) {
      await project.measure({ [main]: mib });
      seen.push(await state());
    }
    expect(seen.map((at) => [at.used, at.storageState, at.accessRevision])).toEqual([
      [700, 'normal', 0],
      [800, 'normal', 0],
      [801, 'warning', 0],
      [799, 'normal', 0],
      [900, 'warning', 0],
      [1000, 'write_blocked', 1],
      [1100, 'write_blocked', 1],
      [999, 'warning', 2],
      [100, 'normal', 2],
    ]);
    const audited = await project.audited();
    expect(audited.map(({ metadata: { from, to } }) => `${from} → ${to}`)).toEqual([
      'normal → warning',
      'warning → normal',
      'normal → warning',
      'warning → write_blocked',
      'write_blocked → warning',
      'warning → normal',
    ]);
    expect(audited[0]).toEqual({
      name: 'project.storage_state.changed',
      actorId: null,
      tenantId: 'acme',
      metadata: { from: 'normal', to: 'warning', used_bytes: 801 * MIB, limit_bytes: 1000 * MIB },
    });
  });

  test('above twice the quota closes the logins of all branches, until usage falls or the quota rises', async () => {
    const closed = await project.branch('closed', 'expired');
    const seen = [];
    for (const mib of [2000, 2001, 2500, 1999]) {
      await project.measure({ [main]: mib });
      seen.push([
        (await state()).storageState,
        (await state()).accessRevision,
        await project.closedBranches(),
      ]);
    }
    expect(seen).toEqual([
      ['write_blocked', 1, [closed]],
      ['closed', 2, [main, closed].sort()],
      ['closed', 2, [main, closed].sort()],
      ['write_blocked', 3, [closed]],
    ]);
    await project.measure({ [main]: 2500 });
    await project.setQuota(2600);
    expect(await project.evaluate()).toMatchObject({ state: 'warning' });
    expect(await state()).toMatchObject({ accessRevision: 5 });
    await mailed('STORAGE_WARNING', 'WRITE_BLOCKED', 'DATABASES_CLOSED');
    const changes = (await project.audited()).map(({ metadata: { from, to } }) => `${from} → ${to}`);
    expect(changes).toContain('write_blocked → closed');
    expect(changes.at(-1)).toBe('closed → warning');
  });

  test('is evaluated from all creating, active and expired branches and from no other', async () => {
    const others = {
      active: await project.branch('a'),
      expired: await project.branch('b', 'expired'),
      creating: await project.branch('c', 'creating'),
      deleted: await project.branch('d', 'deleted'),
      failed: await project.branch('e', 'failed'),
    };
    const sizes = Object.fromEntries(Object.values(others).map((id) => [id, 150]));
    await project.measure({ [main]: 400, ...sizes, [crypto.randomUUID()]: 5000 });
    expect(await state()).toMatchObject({ used: 850, storageState: 'warning' });
    await project.setStatus(others.expired, 'deleted');
    await project.measure({ [main]: 400, ...sizes });
    expect(await state()).toMatchObject({ used: 700, storageState: 'normal' });
  });

  test('is evaluated immediately after a change of the quota', async () => {
    await project.measure({ [main]: 1000 });
    expect(await state()).toMatchObject({ storageState: 'write_blocked', accessRevision: 1 });
    await project.setQuota(1100);
    expect(await project.evaluate()).toMatchObject({ state: 'warning', used: 1000 * MIB });
    expect(await state()).toMatchObject({ storageState: 'warning', accessRevision: 2 });
    await project.setQuota(1000);
    await project.evaluate();
    expect(await state()).toMatchObject({ storageState: 'write_blocked', accessRevision: 3 });
  });

  test('of a project without measurements is not evaluated', async () => {
    expect(await project.evaluate()).toBeNull();
    expect(await project.row()).toMatchObject({ storageState: 'normal', storageMeasuredAt: null });
  });

  test('is audited in the current tenant of the project', async () => {
    await project.measure({ [main]: 100 });
    await project.db.update(projects).set({ tenantId: 'other' }).where(eq(projects.id, project.id));
    await project.measure({ [main]: 900 });
    expect(await project.audited()).toMatchObject([{ tenantId: 'other' }]);
  });

  test('a small change of the usage is not written to D1; the object has the exact value', async () => {
    await project.measure({ [main]: 100 });
    const { storageMeasuredAt } = await project.row();
    await project.measure({ [main]: 100.5 });
    expect(await project.row()).toMatchObject({ storageUsedBytes: 100 * MIB, storageMeasuredAt });
    expect((await project.last()).last?.branches[main]?.database_size_bytes).toBe(100.5 * MIB);
    await project.measure({ [main]: 101 });
    expect(await state()).toMatchObject({ used: 101 });
  });
});

describe('measurements', () => {
  test('of a host that the project is not on are ignored', async () => {
    await project.measure({ [main]: 2000 }, crypto.randomUUID());
    expect((await project.last()).last).toBeNull();
    await project.measure({ [main]: 900 }, project.hostId);
    expect(await state()).toMatchObject({ storageState: 'warning' });
  });

  test('of a project that is missing or being deleted leave nothing', async () => {
    for (const status of ['deleting', 'failed', 'creating'] as const) {
      await project.db.update(projects).set({ status }).where(eq(projects.id, project.id));
      await project.measure({ [main]: 900 });
      expect((await project.last()).last).toBeNull();
    }
    const nowhere = gateway.coordinator(crypto.randomUUID());
    await nowhere.record({
      project_id: crypto.randomUUID(),
      observed_at: new Date().toISOString(),
      branches: [],
    });
    expect(await nowhere.inspect()).toEqual({ kept: {}, alarm: null });
  });

  test('are deleted with the project', async () => {
    await project.measure({ [main]: 900 });
    await mailed('STORAGE_WARNING');
    await project.db.delete(projects).where(eq(projects.id, project.id));
    await project.wake();
    expect((await project.last()).last).toBeNull();
    expect((await project.inspect()).kept).toEqual({});
  });
});

describe('mails', () => {
  test('have the specified content, once an episode', async () => {
    for (const mib of [810, 850, 1000, 990, 1010]) await project.measure({ [main]: mib });
    await mailed('STORAGE_WARNING', 'WRITE_BLOCKED');
    for (const mib of [700, 820]) await project.measure({ [main]: mib });
    await mailed('STORAGE_WARNING', 'STORAGE_WARNING', 'WRITE_BLOCKED');
    const [first] = gateway.mails.posted.filter(({ body }) => body.text.includes(project.id));
    expect(first?.headers.authorization).toBe('Bearer key of the test');
    expect(first?.body).toMatchObject({
      from: 'branchgate@example.com',
      to: 'team@example.com',
      subject: 'STORAGE_WARNING: Web shop at 81%',
      text: expect.stringContaining('uses 81% of its storage quota: 0.791016 of 0.9765625 GiB'),
    });
  });

  test('a project that exceeds both thresholds at the same time gets both', async () => {
    await project.measure({ [main]: 1500 });
    await mailed('STORAGE_WARNING', 'WRITE_BLOCKED');
  });

  test('load nothing, and contain the name of the project as text', async () => {
    const name = '<img src="https://evil.example/x.png">\r\nBcc: eve@evil.example';
    await project.db.update(projects).set({ name }).where(eq(projects.id, project.id));
    await project.measure({ [main]: 900 });
    await mailed('STORAGE_WARNING');
    const [mail] = gateway.mails.posted.filter(({ body }) => body.text.includes(project.id));
    expect(mail?.body.html).not.toMatch(/<(?!\/?p>)/);
    expect(mail?.body.html).toContain('&lt;img src=');
    expect(mail?.body.subject).not.toMatch(/[\r\n]/);
  });

  test.runIf(IS_NIGHTLY)('are retried until they are accepted, each under its own ID', async () => {
    gateway.mails.answersWith(500);
    await project.measure({ [main]: 900 });
    await eventually(async () => expect(subjects().length).toBeGreaterThan(1));
    expect((await project.inspect()).alarm).toBeGreaterThan(Date.now());
    // Neither another measurement nor a restart of the object sends another mail.
    await project.measure({ [main]: 910 });
    await project.reset();
    gateway.mails.answersWith(200);
    await eventually(async () => expect((await project.inspect()).kept.outbox).toBeUndefined());
    const ids = gateway.mails.posted
      .filter(({ body }) => body.text.includes(project.id))
      .map(({ headers }) => headers['idempotency-key']);
    expect(new Set(ids).size).toBe(1);
    const { length } = ids;
    await project.measure({ [main]: 920 });
    expect(subjects()).toHaveLength(length);
  });

  test('of a tenant that moves its quota up and down are 30 an hour, and those of others arrive', async () => {
    const ofTenant = (tenantId: string) =>
      project.db.update(projects).set({ tenantId }).where(eq(projects.id, project.id));
    await ofTenant('flooding');
    await project.measure({ [main]: 500 });
    for (let n = 0; n < 20; n++) {
      for (const mib of [1000, 200]) {
        await project.setQuota(mib);
        await project.evaluate();
      }
    }
    await eventually(async () => expect((await project.inspect()).kept.outbox).toBeUndefined());
    expect(subjects()).toHaveLength(30);
    await ofTenant('another');
    await project.setQuota(1000);
    await project.evaluate();
    await project.measure({ [main]: 900 });
    await eventually(async () => expect(subjects()).toHaveLength(31));
  });

  test('what an object could not send before a crash is sent after the next measurement', async () => {
    // As if it had crashed after the state was stored and before anything was sent.
    await project.db.update(projects).set({ storageState: 'warning' }).where(eq(projects.id, project.id));
    await project.measure({ [main]: 900 });
    await mailed('STORAGE_WARNING');
    expect(await project.audited()).toEqual([]);
  });
});

describe('sizes between two measurements', () => {
  test('end a write block, and count until the next measurement', async () => {
    await project.measure({ [main]: 1000 });
    expect(await state()).toMatchObject({ storageState: 'write_blocked', accessRevision: 1 });
    await project.resize({ [main]: 100 });
    expect(await state()).toMatchObject({ used: 100, storageState: 'normal', accessRevision: 2 });
    await project.evaluate();
    expect(await state()).toMatchObject({ used: 100 });
    await project.measure({ [main]: 1000 });
    expect(await state()).toMatchObject({ used: 1000, storageState: 'write_blocked' });
  });

  test('of another host, and of branches without a record, are ignored', async () => {
    await project.measure({ [main]: 1000 });
    await project.resize({ [main]: 1 }, crypto.randomUUID());
    await project.resize({ [crypto.randomUUID()]: 1 });
    expect(await state()).toMatchObject({ used: 1000, storageState: 'write_blocked' });
    expect((await project.inspect()).kept.known_sizes).toBeUndefined();
  });
});

describe('a clone', () => {
  const cloneOf = (sourceId: string) => ({ branchId: crypto.randomUUID(), sourceId });

  test('fits, or is refused with the required size', async () => {
    await project.measure({ [main]: 501 });
    expect(await project.reserveClones([cloneOf(main)])).toEqual([
      {
        ok: false,
        failure: {
          code: 'STORAGE_QUOTA_EXCEEDED',
          fields: { used_bytes: 501 * MIB, needed_bytes: 501 * MIB, limit_bytes: 1000 * MIB },
        },
      },
    ]);
    await project.measure({ [main]: 500 });
    expect(await project.reserveClones([cloneOf(main)])).toMatchObject([{ ok: true }]);
  });

  test('is refused if the project would have more files than a host allows', async () => {
    const files = async (count: number) => {
      await project.measure({ [main]: 1 }, undefined, undefined, count);
      return project.reserveClones([cloneOf(main)]);
    };
    expect(await files(PROJECT_FILES_MAX / 2 + 1)).toEqual([
      {
        ok: false,
        failure: {
          code: 'FILE_LIMIT_REACHED',
          fields: {
            used_files: PROJECT_FILES_MAX / 2 + 1,
            needed_files: PROJECT_FILES_MAX / 2 + 1,
            limit_files: PROJECT_FILES_MAX,
          },
        },
      },
    ]);
    expect(await files(PROJECT_FILES_MAX / 2)).toMatchObject([{ ok: true }]);
  });

  test('of a checkpoint counts the same files, and those of the checkpoints before it', async () => {
    const third = Math.floor(PROJECT_FILES_MAX / 3);
    await project.measure({ [main]: 1 }, undefined, undefined, third);
    expect(await project.fileExcess(main)).toBeNull();
    await project.checkpoint(main);
    expect(await project.fileExcess(main)).toBeNull();
    await project.checkpoint(main);
    expect(await project.fileExcess(main)).toEqual({
      code: 'FILE_LIMIT_REACHED',
      fields: { used_files: 3 * third, needed_files: third, limit_files: PROJECT_FILES_MAX },
    });
  });

  test('of a batch needs the space of all its branches, and counts with it', async () => {
    const batch = (count: number) => {
      const branches = Array.from({ length: count }, () => crypto.randomUUID()).map((id) => ({
        id,
        name: id,
      }));
      return { ...cloneOf(main), more: { isBatch: true, branches } };
    };
    expect(await project.reserveClones([batch(4)], { [main]: 201 })).toMatchObject([
      { failure: { fields: { used_bytes: 201 * MIB, needed_bytes: 804 * MIB } } },
    ]);
    expect(await project.reserveClones([batch(3)], { [main]: 201 })).toMatchObject([{ ok: true }]);
    expect(await project.reserveClones([cloneOf(main)], { [main]: 201 })).toMatchObject([
      { failure: { fields: { used_bytes: 804 * MIB, needed_bytes: 201 * MIB } } },
    ]);
  });

  test('of several concurrent ones as many are admitted as fit together', async () => {
    await project.measure({ [main]: 200 });
    const outcomes = await project.reserveClones(Array.from({ length: 10 }, () => cloneOf(main)));
    expect(outcomes.filter(({ ok }) => ok)).toHaveLength(4);
  });

  test('is refused by the sizes that the host reads now, measured before or not', async () => {
    const sizes = { [main]: 600 };
    const refused = [
      {
        ok: false,
        failure: {
          code: 'STORAGE_QUOTA_EXCEEDED',
          fields: { used_bytes: 600 * MIB, needed_bytes: 600 * MIB, limit_bytes: 1000 * MIB },
        },
      },
    ];
    expect(await project.reserveClones([cloneOf(main)], sizes)).toEqual(refused);
    await project.measure({ [main]: 10 });
    expect(await project.reserveClones([cloneOf(main)], sizes)).toEqual(refused);
    expect(await project.reserveClones([cloneOf(main)], { [main]: 490 })).toMatchObject([{ ok: true }]);
  });

  test.each([
    ['the branch limit', 1, 2],
    ['the quota', 500, 10],
  ])(
    'that is requested twice under one key is not refused because it reached %s itself',
    async (_, mib, limit) => {
      await project.db.update(projects).set({ branchLimit: limit }).where(eq(projects.id, project.id));
      await project.measure({ [main]: mib });
      const key = crypto.randomUUID();
      const twice = [cloneOf(main), cloneOf(main)].map((clone) => ({ ...clone, branchName: 'twice', key }));
      const outcomes = await project.reserveClones(twice);
      expect(outcomes).toMatchObject([
        { ok: true },
        { ok: false, failure: { code: 'IDEMPOTENCY_IN_FLIGHT', fields: { job_id: expect.any(String) } } },
      ]);
      expect(await project.reserveClones([cloneOf(main)])).toMatchObject([{ ok: false }]);
    },
  );

  test.each(['expired', 'failed', 'creating'] as const)(
    'of a branch that is %s is refused',
    async (status) => {
      const source = await project.branch('source', status);
      await project.measure({ [main]: 1, [source]: 1 });
      expect(await project.reserveClones([cloneOf(source)])).toEqual([
        { ok: false, failure: { code: 'SOURCE_NOT_ACTIVE' } },
      ]);
    },
  );

  test('counts before it is measured, also after a restart of the object, and as a source', async () => {
    await project.measure({ [main]: 300 });
    const first = crypto.randomUUID();
    const second = crypto.randomUUID();
    await project.reserveClones([{ branchId: first, sourceId: main }]);
    await project.reset();
    await project.setStatus(first, 'active');
    expect(await project.reserveClones([{ branchId: second, sourceId: first }])).toMatchObject([
      { ok: true },
    ]);
    expect(await project.reserveClones([cloneOf(main)])).toMatchObject([
      { ok: false, failure: { fields: { used_bytes: 900 * MIB } } },
    ]);
    await project.measure({ [main]: 300, [first]: 310, [second]: 320 });
    await project.setStatus(second, 'active');
    await project.evaluate();
    expect(await state()).toMatchObject({ used: 930 });
    // Measured branches are removed from the unmeasured ones.
    await project.setQuota(2000);
    const third = crypto.randomUUID();
    await project.reserveClones([{ branchId: third, sourceId: main }]);
    expect((await project.inspect()).kept.known_sizes).toEqual({ [third]: { bytes: 300 * MIB, at: null } });
  });

  test('that was refused for another reason, or whose branch is deleted, needs no space', async () => {
    await project.measure({ [main]: 400 });
    const named = { ...cloneOf(main), branchName: 'main' };
    expect(await project.reserveClones([named])).toMatchObject([{ failure: { code: 'BRANCH_EXISTS' } }]);
    const gone = crypto.randomUUID();
    await project.reserveClones([{ branchId: gone, sourceId: main }]);
    await project.setStatus(gone, 'deleted');
    expect(await project.reserveClones([cloneOf(main)])).toMatchObject([{ ok: true }]);
  });

  test('an expired branch counts against the quota, and its revival changes nothing', async () => {
    const expired = await project.branch('expired', 'expired');
    await project.measure({ [main]: 601, [expired]: 400 });
    expect(await state()).toMatchObject({ storageState: 'write_blocked', used: 1001 });
    expect(await project.reserveClones([cloneOf(main)])).toMatchObject([
      { failure: { code: 'STORAGE_QUOTA_EXCEEDED', fields: { used_bytes: 1001 * MIB } } },
    ]);
    expect(await project.extend(expired)).toMatchObject([{ ok: true, value: { status: 'active' } }]);
    await project.evaluate();
    expect(await state()).toMatchObject({ used: 1001 });
  });

  test('an expired branch keeps its place until it is deleted, and its revival needs none', async () => {
    await project.db.update(projects).set({ branchLimit: 3 }).where(eq(projects.id, project.id));
    const expired = [await project.branch('one', 'expired'), await project.branch('two', 'expired')];
    await project.measure({ [main]: 1, ...Object.fromEntries(expired.map((id) => [id, 1])) });
    const fields = { limit: 3, current: 3, retry_after: null };
    const refused = { ok: false, failure: { code: 'BRANCH_LIMIT_REACHED', fields } };
    expect(await project.reserveClones([cloneOf(main)])).toEqual([refused]);
    // Both at once, and one of them twice.
    const [first = '', second = ''] = expired;
    expect(await project.extend(first, second, first)).toMatchObject(
      Array(3).fill({ ok: true, value: { status: 'active' } }),
    );
    expect(await project.reserveClones([cloneOf(main)])).toEqual([refused]);
    // Above a limit that was lowered, too.
    await project.setStatus(first, 'expired');
    await project.db.update(projects).set({ branchLimit: 1 }).where(eq(projects.id, project.id));
    expect(await project.extend(first)).toMatchObject([{ ok: true, value: { status: 'active' } }]);
    await project.db.update(projects).set({ branchLimit: 3 }).where(eq(projects.id, project.id));
    await project.setStatus(first, 'deleted');
    // One slot for two concurrent creations.
    const outcomes = await project.reserveClones([cloneOf(main), cloneOf(main)]);
    expect(outcomes.filter(({ ok }) => ok)).toHaveLength(1);
    expect(outcomes.filter(({ ok }) => !ok)).toEqual([refused]);
  });

  test('of two requests at once for the tenth branch, one succeeds, whatever expires and is revived', async () => {
    const names = Array.from({ length: 8 }, (_, n) => `expired-${n}`);
    const [one = '', two = '', ...others] = await Promise.all(
      names.map((name) => project.branch(name, 'expired')),
    );
    await project.measure({ [main]: 1, ...Object.fromEntries([one, two, ...others].map((id) => [id, 1])) });
    const refused = {
      ok: false,
      failure: { code: 'BRANCH_LIMIT_REACHED', fields: { limit: 10, current: 10, retry_after: null } },
    };
    const createTwo = () => project.reserveClones([cloneOf(main), cloneOf(main)]);
    const outcomes = async () => (await createTwo()).map((outcome) => (outcome.ok ? 'made' : outcome)).sort();
    expect(await outcomes()).toEqual([refused, 'made']);
    const [revived, made] = await Promise.all([project.extend(one, one), createTwo()]);
    expect(revived).toMatchObject(Array(2).fill({ ok: true, value: { status: 'active' } }));
    expect(made).toEqual([refused, refused]);
    await project.setStatus(two, 'deleted');
    expect(await outcomes()).toEqual([refused, 'made']);
  });

  test('of a revival and a creation at the last slot, the revival always succeeds', async () => {
    await project.db.update(projects).set({ branchLimit: 2 }).where(eq(projects.id, project.id));
    const expired = await project.branch('expired', 'expired');
    await project.measure({ [main]: 1, [expired]: 1 });
    const [[revived], [created]] = await Promise.all([
      project.extend(expired),
      project.reserveClones([cloneOf(main)]),
    ]);
    expect([revived, created]).toMatchObject([{ ok: true }, { failure: { code: 'BRANCH_LIMIT_REACHED' } }]);
  });

  test('leased branches count like all others, save as many as the operator allows on top', async () => {
    const set = (values: { branchLimit?: number; leasedBranchLimit?: number }) =>
      project.db.update(projects).set(values).where(eq(projects.id, project.id));
    const leased = (count: number) => ({
      ...cloneOf(main),
      more: {
        isBatch: true,
        leaseSeconds: 60,
        branches: Array.from({ length: count }, () => crypto.randomUUID()).map((id) => ({ id, name: id })),
      },
    });
    await project.measure({ [main]: 1 });
    await set({ branchLimit: 3 });
    const refused = (limit: number, current: number) => ({
      failure: { code: 'BRANCH_LIMIT_REACHED', fields: { limit, current, retry_after: null } },
    });
    expect(await project.reserveClones([leased(3)])).toMatchObject([refused(3, 1)]);
    expect(await project.reserveClones([leased(2)])).toMatchObject([{ ok: true }]);
    expect(await project.reserveClones([cloneOf(main)])).toMatchObject([refused(3, 3)]);
    await set({ leasedBranchLimit: 2 });
    // Two of the allowance, and main: two slots are left for branches without a lease.
    expect(await project.reserveClones([leased(3)])).toMatchObject([refused(5, 3)]);
    expect(await project.reserveClones([cloneOf(main), cloneOf(main)])).toMatchObject([
      { ok: true },
      { ok: true },
    ]);
    expect(await project.reserveClones([leased(1)])).toMatchObject([refused(5, 5)]);
    expect(await project.reserveClones([cloneOf(main)])).toMatchObject([refused(5, 5)]);
  });
});

describe('by what the branches take of the disk', () => {
  let physical: MonitorGateway;
  beforeAll(async () => {
    physical = await startMonitorGateway({ STORAGE_ACCOUNTING: 'physical' });
  });
  afterAll(() => physical?.stop());

  test('a shared block counts once, growth since the last look counts, and a clone costs little', async () => {
    const clone = (sourceId: string) => ({ branchId: crypto.randomUUID(), sourceId });
    const own = await measuredProject(physical);
    const first = await own.branch('main');
    const second = await own.branch('branch');
    const used = async () => (await own.row()).storageUsedBytes / MIB;
    const sizes = { [first]: 600, [second]: 600 };
    await own.measure(sizes);
    expect(await used(), 'before the disk was measured').toBe(1200);
    await own.measure(sizes, undefined, { mib: 610, sizes });
    expect(await used()).toBe(610);
    const made = clone(first);
    expect(await own.reserveClones([made])).toMatchObject([{ ok: true }]);
    await own.setStatus(made.branchId, 'deleted');
    await own.measure({ ...sizes, [second]: 900 });
    expect(await used(), 'the last look at the disk and what was written since').toBe(910);
    await own.measure({ [first]: 200, [second]: 100 });
    expect(await used(), 'never more than the sizes').toBe(300);
    await own.measure(sizes, undefined, { mib: 1000, sizes });
    expect(await own.row()).toMatchObject({ storageState: 'write_blocked' });
    expect(await own.reserveClones([clone(first)])).toMatchObject([
      { ok: false, failure: { code: 'STORAGE_QUOTA_EXCEEDED', fields: { needed_bytes: MIB } } },
    ]);
  });

  test('the sizes count by default, whatever the host measures', async () => {
    await project.measure({ [main]: 900 }, undefined, { mib: 1, sizes: { [main]: 900 } });
    expect(await state()).toMatchObject({ used: 900, storageState: 'warning' });
  });
});
