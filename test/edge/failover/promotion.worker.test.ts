import { eq, inArray } from 'drizzle-orm';
import { beforeEach, describe, expect, test } from 'vitest';
import { eventOutbox } from '../../../edge/database/event-schema.ts';
import { moves } from '../../../edge/database/move-schema.ts';
import { accounts } from '../../../edge/database/people-schema.ts';
import { hosts, jobs, projects, users } from '../../../edge/database/schema.ts';
import type { Env } from '../../../edge/env.ts';
import {
  admitToPrimary,
  promoteLapsed,
  promoteStandby,
  pushMember,
  syncMember,
} from '../../../edge/failover/promotion.ts';
import { registerHost } from '../../../edge/hosts/enrolment.ts';
import { removeHost } from '../../../edge/hosts/host.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import type { HostMember } from '../../../shared/protocol/standby.ts';
import { eventually } from '../../support/eventually.ts';
import { ACTOR, insertProject, insertProjects, startRecords } from '../../support/records/records.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const { binding, db } = await startRecords();

/** A member as its agent is: it ignores a record that is older than the one that it has. */
class Agent {
  record: HostMember;
  position = 100;
  isLinked = true;
  /** Of a standby that cannot ask its primary. */
  unheard: { seconds: number; bytes: number } | null = null;
  lagBytes: number | null = null;
  /** The next record that closes it fails so. */
  isBusy = false;
  /** Each record fails so. */
  refusal: string | null = null;

  constructor(role: HostMember['role'], generation: number, standbyId: string | null) {
    this.record = { role, generation, closing: false, standby_id: standbyId, lease_seconds: null };
  }

  get state() {
    const { generation } = this.record;
    const none = { lag_seconds: null, survived_until: null, sync: 'off' as const };
    return { generation, position: this.position, lag_bytes: this.lagBytes, unheard: this.unheard, ...none };
  }

  get isOpen(): boolean {
    return this.record.role === 'primary' && !this.record.closing;
  }
}

let former: { id: string; agent: Agent };
let next: { id: string; agent: Agent };
/** Whether both were open after any call. */
let wereBothOpen: boolean;
let env: Env;
/** Hosts whose next look was brought forward. */
let broughtForward: Set<string>;
/** Addresses of the mails, and what sending them does. */
let mailed: string[];
let onMail: () => void;
/** Whether the object of a primary forgets its lease. */
let isDroppable: boolean;

const rowOf = async ({ id }: { id: string }) =>
  (await db.select().from(hosts).where(eq(hosts.id, id)))[0] as typeof hosts.$inferSelect;
const change = (of: { id: string }, values: Partial<typeof hosts.$inferSelect>) =>
  db.update(hosts).set(values).where(eq(hosts.id, of.id));

/** A primary with its standby, both with the record of generation 3. */
beforeEach(async () => {
  const primaryId = crypto.randomUUID();
  const standbyId = crypto.randomUUID();
  former = { id: primaryId, agent: new Agent('primary', 3, standbyId) };
  next = { id: standbyId, agent: new Agent('standby', 3, null) };
  const host = { dbHost: 'db.example.com', directPort: 5432, pooledPort: 6432, generation: 3 };
  const now = new Date();
  const member = (id: string, standbyOf: string | null) =>
    db.insert(hosts).values({
      ...host,
      id,
      name: id,
      role: standbyOf === null ? 'primary' : 'standby',
      enrolledAt: now,
      createdAt: now,
      standbyOf,
    });
  await db.batch([member(primaryId, null), member(standbyId, primaryId)]);
  wereBothOpen = false;
  broughtForward = new Set();
  mailed = [];
  onMail = () => {};
  isDroppable = true;
  env = {
    ...SETTINGS,
    DB: binding,
    HOST_LINK: {
      idFromName: (name: string) => name,
      get: (id: string) => ({
        call: callOf(id),
        dropLease: async () => isDroppable,
        reconcile: async () => void broughtForward.add(id),
        linked: async () => agentOf(id).isLinked,
      }),
    },
    PROJECT_COORDINATOR: {
      idFromName: (name: string) => name,
      get: () => ({
        sendMails: async (mails: { to: string; text: string }[]) => {
          onMail();
          mailed.push(...mails.map(({ to, text }) => `${to}: ${text}`));
        },
        wake: async () => {},
      }),
    },
  } as unknown as Env;
});

const agentOf = (id: string) => ([former, next].find((member) => member.id === id) as typeof former).agent;

const callOf = (id: string) => async (method: string, params: HostMember) => {
  const agent = agentOf(id);
  if (!agent.isLinked) return { ok: false, failure: { code: 'HOST_UNAVAILABLE', message: 'away' } };
  if (agent.refusal) return { ok: false, failure: { code: agent.refusal, message: 'refused' } };
  if (method === 'member.apply' && params.generation >= agent.record.generation) {
    if (params.closing && agent.isBusy) {
      agent.isBusy = false;
      return { ok: false, failure: { code: 'HOST_BUSY', message: 'a clone' } };
    }
    agent.record = params;
  }
  wereBothOpen ||= former.agent.isOpen && next.agent.isOpen;
  return { ok: true, value: agent.state };
};

const promote = (lost: string | null = null) =>
  promoteStandby(env, next.id, { lost, force: true }, new Date());

async function expectPromoted() {
  expect(wereBothOpen).toBe(false);
  expect([former.agent.record.role, next.agent.record.role]).toEqual(['fenced', 'primary']);
  expect([(await rowOf(former)).standbyOf, (await rowOf(next)).standbyOf]).toEqual([next.id, null]);
}

describe('a promotion', () => {
  test.each([null, 'lost'])('closes a primary that is linked before the standby opens: %s', async (lost) => {
    expect(await promote(lost && former.id)).toMatchObject({ ok: true });
    await expectPromoted();
  });

  test.each([null, 'lost'])(
    'closes a primary that knows a newer record than D1, which was restored: %s',
    async (lost) => {
      former.agent.record.generation = 9;
      expect(await promote(lost && former.id)).toMatchObject({ ok: true });
      await expectPromoted();
    },
  );

  test.each(['the look at the standby', 'a repeated request'])(
    'that was interrupted after its record is finished by %s, and the former primary is closed first',
    async (by) => {
      await change(former, { role: 'fenced', standbyOf: next.id, generation: 4 });
      await change(next, { role: 'primary', standbyOf: null, generation: 4 });
      if (by === 'a repeated request') await promote(former.id);
      else await syncMember(env, next.id, new Date());
      await expectPromoted();
    },
  );

  test('that waits is refused when another request has closed the primary again', async () => {
    next.agent.position = 50;
    const waiting = promote();
    await eventually(async () => expect(former.agent.record.closing).toBe(true));
    // The second request fails, which opens the primary, and somebody writes. The third one closes it.
    former.agent.isBusy = true;
    expect(await promote()).toMatchObject({ ok: false, failure: { code: 'HOST_BUSY' } });
    expect(former.agent.isOpen).toBe(true);
    former.agent.position = 200;
    const third = promote();
    await eventually(async () => expect(former.agent.record.closing).toBe(true));
    next.agent.position = 100;
    expect(await waiting).toMatchObject({ ok: false });
    expect((await rowOf(next)).standbyOf).toBe(former.id);
    next.agent.position = 200;
    expect(await third).toMatchObject({ ok: true });
    await expectPromoted();
  });
});

describe('a primary whose lease has ended', () => {
  const SILENT = { generation: 3, silentMs: 90_000 };
  const lapse = (lease = SILENT, decide?: () => boolean) =>
    promoteLapsed({ ...env, AUTO_PROMOTE_SECONDS: '90' } as unknown as Env, former.id, lease, decide);

  beforeEach(() => {
    former.agent.isLinked = false;
    next.agent.unheard = { seconds: 60, bytes: 0 };
  });

  test('is followed by its standby', async () => {
    expect(await lapse()).toEqual({ isPromoted: true, generation: 3 });
    expect(next.agent.record.role).toBe('primary');
    expect((await rowOf(former)).role).toBe('fenced');
    expect([...broughtForward].sort()).toEqual([former.id, next.id].sort());
    // One whose answer was lost finds that, and has it finished.
    broughtForward.clear();
    expect(await lapse()).toEqual({ isPromoted: true, generation: 4 });
    expect([...broughtForward]).toEqual([next.id]);
  });

  test.each<[string, () => void, typeof SILENT?]>([
    ['is away', () => (next.agent.isLinked = false)],
    ['has no copy', () => (next.agent.record.generation = 2)],
    ['can still reach the primary', () => (next.agent.lagBytes = 0)],
    ['has not followed it since its start', () => (next.agent.unheard = null)],
    ['lacks too much', () => (next.agent.unheard = { seconds: 60, bytes: 2 ** 30 })],
    ['had lost it long before', () => (next.agent.unheard = { seconds: 600, bytes: 0 })],
    ['got another record since', () => {}, { ...SILENT, generation: 2 }],
  ])('keeps its place if the standby %s', async (_, prepare, lease) => {
    prepare();
    expect(await lapse(lease)).toMatchObject({ isPromoted: false });
    expect((await rowOf(former)).standbyOf).toBe(null);
  });

  test('keeps its place if it has renewed it before the decision', async () => {
    expect(await lapse(SILENT, () => false)).toMatchObject({ isPromoted: false });
    expect((await rowOf(former)).standbyOf).toBe(null);
  });

  test('gets no record without a lease while that is decided', async () => {
    isDroppable = false;
    former.agent.isLinked = true;
    former.agent.record = { ...former.agent.record, lease_seconds: 60 };
    await pushMember(env, former.id);
    expect(former.agent.record.lease_seconds).toBe(60);
  });

  test('keeps its place if nothing promotes by itself', async () => {
    expect(await promoteLapsed(env, former.id, SILENT)).toMatchObject({ isPromoted: null });
    expect((await rowOf(former)).standbyOf).toBe(null);
  });
});

describe('a switch that was interrupted', () => {
  beforeEach(async () => {
    await change(former, { role: 'closing', yieldsSince: new Date(), generation: 4 });
    former.agent.record = { ...former.agent.record, closing: true, generation: 4 };
  });

  test('before its record: the primary opens again within a minute', async () => {
    const look = async (afterMs: number) => syncMember(env, former.id, new Date(Date.now() + afterMs));
    const { again } = await look(20_000);
    expect(former.agent.isOpen).toBe(false);
    expect(again).toBeLessThanOrEqual(15_000);
    await look(40_000);
    expect(former.agent.isOpen).toBe(true);
  });

  test('and one that is still in progress is not treated as interrupted', async () => {
    next.agent.position = 50;
    const waiting = promote();
    const since = async () => (await rowOf(former)).yieldsSince?.getTime() ?? 0;
    await eventually(async () => expect((await rowOf(former)).generation).toBe(5));
    const begun = await since();
    await eventually(async () => expect(await since()).toBeGreaterThan(begun));
    next.agent.position = 100;
    expect(await waiting).toMatchObject({ ok: true });
  });
});

test('each change of the records brings the next look at both hosts forward', async () => {
  next.agent.position = 50;
  const waiting = promote();
  await eventually(async () => expect([...broughtForward]).toEqual([former.id]));
  next.agent.position = 100;
  await waiting;
  expect([...broughtForward].sort()).toEqual([former.id, next.id].sort());
});

test('a former primary is not removed before it has reported that it is closed', async () => {
  former.agent.isLinked = false;
  expect(await promote(former.id)).toMatchObject({ ok: true });
  expect(await removeHost(db, former.id, false)).toMatchObject({ failure: { code: 'HOST_NOT_FENCED' } });
  former.agent.isLinked = true;
  await syncMember(env, former.id, new Date());
  expect(await removeHost(db, former.id, false)).toMatchObject({ ok: true });
});

test('a former primary whose machine is off is removed without its report', async () => {
  former.agent.isLinked = false;
  await promote(former.id);
  expect(await removeHost(db, former.id, true)).toMatchObject({ ok: true });
});

test('a primary that is linked is not given up, until its standby has taken its place', async () => {
  const code = async (standby: string, lost: string) => {
    const result = await promoteStandby(env, standby, { lost, force: false }, new Date());
    return result.ok ? null : result.failure.code;
  };
  expect(await code(next.id, former.id)).toBe('PRIMARY_LINKED');
  expect(await code(former.id, next.id)).toBe('HOST_NOT_STANDBY');
  await promote();
  expect(await code(next.id, former.id)).toBe(null);
});

test('a primary whose agent is of an earlier release gets no standby, and its record stays', async () => {
  former.agent.refusal = 'HOST_UPGRADE_REQUIRED';
  expect(await admitToPrimary(env, next.id, 'verifier')).toMatchObject({
    failure: { code: 'HOST_UPGRADE_REQUIRED' },
  });
  expect((await rowOf(former)).generation).toBe(3);
});

test('a primary that cannot apply its record is reconciled nevertheless', async () => {
  former.agent.refusal = 'HOST_BUSY';
  expect(await syncMember(env, former.id, new Date())).toEqual({ serves: true, again: 30_000 });
  next.agent.refusal = 'HOST_BUSY';
  await expect(syncMember(env, next.id, new Date())).rejects.toThrow();
});

test('of two standbys of one host that are registered at the same time, one is refused', async () => {
  await db.delete(hosts).where(eq(hosts.id, next.id));
  const register = (name: string) =>
    registerHost(
      db,
      'https://gateway.example.com',
      {
        name,
        db_host: 'b.example.com',
        direct_port: 5432,
        pooled_port: 6432,
        ca_certificate: null,
        region: null,
        capacity: null,
        standby_of: former.id,
      },
      new Date(),
    );
  const results = await Promise.all([register('standby-1'), register('standby-2')]);
  expect(results.filter(({ ok }) => ok)).toHaveLength(1);
  expect(results).toContainEqual({ ok: false, failure: { code: 'HOST_HAS_STANDBY' } });
  await db.delete(hosts).where(eq(hosts.standbyOf, former.id));
});

describe('the tenants of a lost host', () => {
  const TENANTS = 23;
  const TIMES = { createdAt: new Date(), updatedAt: new Date() };
  const placed = Array.from({ length: TENANTS }, (_, at) => `t${at}`);

  beforeEach(async () => {
    await db.batch([db.delete(projects), db.delete(eventOutbox)]);
    await insertProjects(
      db,
      former.id,
      placed.map((tenantId) => ({ id: crypto.randomUUID(), tenantId })),
    );
    await db.batch([
      db
        .insert(accounts)
        .values({ id: 'g', email: 'e', name: 'E', passwordHash: '', role: 'owner', tenantId: 't', ...TIMES })
        .onConflictDoNothing(),
      db.update(users).set({ issuer: SETTINGS.BASE_URL }),
    ]);
  });

  const owing = async () =>
    (await db.select().from(projects).where(eq(projects.owesNotice, true))).map(({ tenantId }) => tenantId);
  const informed = async () =>
    (await db.select().from(projects)).filter(({ failedOverAt }) => failedOverAt !== null).length;

  test('are informed once, also by two requests at the same time, and many in several looks', async () => {
    expect(await promote(former.id)).toMatchObject({ ok: true });
    expect(await informed()).toBe(20);
    expect(await owing()).toHaveLength(TENANTS - 20);
    expect(broughtForward).toContain(next.id);
    await Promise.all([pushMember(env, next.id), pushMember(env, next.id)]);
    expect(await informed()).toBe(TENANTS);
    expect(await owing()).toEqual([]);
    await pushMember(env, next.id);
    const events = await db.select().from(eventOutbox).where(eq(eventOutbox.type, 'project.failed_over'));
    expect(events).toHaveLength(TENANTS);
  });

  test('whose mail fails do not fail the promotion, nor the mails of others', async () => {
    await db
      .update(projects)
      .set({ tenantId: 't' })
      .where(inArray(projects.tenantId, placed.slice(0, 10)));
    let tries = 0;
    onMail = () => {
      tries += 1;
      throw new Error('the object was lost');
    };
    expect(await promote(former.id)).toMatchObject({ ok: true });
    expect(tries).toBe(1);
    expect(await owing()).toEqual([]);
    expect(await informed()).toBe(TENANTS);
  });

  test('get one mail for all of their projects', async () => {
    await db.update(projects).set({ tenantId: 't' });
    await promote(former.id);
    await pushMember(env, next.id);
    expect(mailed).toHaveLength(1);
  });

  test('hear nothing of a planned switch', async () => {
    expect(await promote()).toMatchObject({ ok: true });
    expect([await informed(), await owing()]).toEqual([0, []]);
  });
});

describe('a move that is open', () => {
  let other: string;

  /** @returns of the job */
  async function insertMove(way: 'from' | 'to', phase: 'building' | 'moved'): Promise<string> {
    const projectId = crypto.randomUUID();
    const jobId = crypto.randomUUID();
    const [fromHostId, toHostId] = way === 'from' ? [former.id, other] : [other, former.id];
    await insertProject(db, phase === 'moved' ? toHostId : fromHostId, projectId);
    const now = new Date();
    const input = { branchId: null, branchIds: [], toHostId, leftOut: [], dropsSnapshots: false };
    const about = { id: jobId, projectId, hostId: fromHostId, actor: ACTOR };
    await db.insert(jobs).values(newJob('project.move', input, about, now));
    await db.insert(moves).values({
      projectId,
      jobId,
      fromHostId,
      toHostId,
      phase,
      keyId: 'k',
      sealedPassword: 's',
      branches: [],
      createdAt: now,
      updatedAt: now,
    });
    return jobId;
  }

  const jobOf = async (id: string) => {
    const [job] = await db.select().from(jobs).where(eq(jobs.id, id));
    const [move] = await db.select().from(moves).where(eq(moves.jobId, id));
    const input = job?.input as { toHostId: string };
    return {
      error: job?.error,
      at: job?.hostId,
      to: input.toHostId,
      move: [move?.fromHostId, move?.toHostId],
    };
  };

  beforeEach(async () => {
    await db.delete(moves);
    await db.delete(jobs);
    other = crypto.randomUUID();
  });

  test.each(['from', 'to'] as const)('refuses a planned switch of its host: %s', async (way) => {
    await insertMove(way, 'building');
    expect(await promote()).toMatchObject({ ok: false, failure: { code: 'HOST_BUSY' } });
    expect(former.agent.isOpen).toBe(true);
  });

  test('is undone when its host is lost, and finished if the project has moved', async () => {
    const from = await insertMove('from', 'building');
    const to = await insertMove('to', 'building');
    const left = await insertMove('from', 'moved');
    const arrived = await insertMove('to', 'moved');
    former.agent.isLinked = false;
    expect(await promote(former.id)).toMatchObject({ ok: true });
    const isUndone = { error: { code: 'SOURCE_UNSUITABLE' } };
    expect(await jobOf(from)).toMatchObject({ ...isUndone, at: next.id, to: other, move: [next.id, other] });
    expect(await jobOf(to)).toMatchObject({ ...isUndone, at: other, to: next.id, move: [other, next.id] });
    expect(await jobOf(left)).toMatchObject({ error: null, at: next.id, to: other, move: [next.id, other] });
    expect(await jobOf(arrived)).toMatchObject({
      error: null,
      at: other,
      to: next.id,
      move: [other, next.id],
    });
  });
});
