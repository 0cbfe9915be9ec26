import { eq } from 'drizzle-orm';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { hosts } from '../../../edge/database/schema.ts';
import type { Env } from '../../../edge/env.ts';
import { promoteLapsed, promoteStandby, syncMember } from '../../../edge/reconciliation/promote-standby.ts';
import type { HostMember } from '../../../shared/protocol/standby.ts';
import { eventually } from '../../support/eventually.ts';
import { startRecords } from '../../support/records/records.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const { binding, db, stop } = await startRecords();
afterAll(stop);

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

const rowOf = async ({ id }: { id: string }) =>
  (await db.select().from(hosts).where(eq(hosts.id, id)))[0] as typeof hosts.$inferSelect;
const change = (of: { id: string }, values: Partial<typeof hosts.$inferSelect>) =>
  db.update(hosts).set(values).where(eq(hosts.id, of.id));

/** A primary with its standby, both with the record of generation 3. */
beforeEach(async () => {
  const [primaryId, standbyId] = [crypto.randomUUID(), crypto.randomUUID()];
  former = { id: primaryId, agent: new Agent('primary', 3, standbyId) };
  next = { id: standbyId, agent: new Agent('standby', 3, null) };
  const host = { dbHost: 'db.example.com', directPort: 5432, pooledPort: 6432, generation: 3 };
  const now = new Date();
  for (const id of [primaryId, standbyId])
    await db.insert(hosts).values({
      ...{ ...host, id, name: id, enrolledAt: now, createdAt: now },
      standbyOf: id === standbyId ? primaryId : null,
    });
  wereBothOpen = false;
  env = {
    ...SETTINGS,
    DB: binding,
    HOST_LINK: {
      idFromName: (name: string) => name,
      get: (id: string) => ({ call: callOf(id), dropLease: async () => {} }),
    },
  } as unknown as Env;
});

const callOf = (id: string) => async (method: string, params: HostMember) => {
  const { agent } = [former, next].find((member) => member.id === id) as typeof former;
  if (!agent.isLinked) return { ok: false, failure: { code: 'HOST_UNAVAILABLE', message: 'away' } };
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

const promote = (lost: string | null = null) => promoteStandby(env, next.id, lost, new Date());

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
      await change(former, { standbyOf: next.id, fenced: true, generation: 4 });
      await change(next, { standbyOf: null, generation: 4 });
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
  const lapse = (lease = SILENT) =>
    promoteLapsed({ ...env, AUTO_PROMOTE_SECONDS: '90' } as unknown as Env, former.id, lease);

  beforeEach(() => {
    former.agent.isLinked = false;
    next.agent.unheard = { seconds: 60, bytes: 0 };
  });

  test('is followed by its standby', async () => {
    expect(await lapse()).toEqual({ isPromoted: true, generation: 3 });
    expect(next.agent.record.role).toBe('primary');
    expect((await rowOf(former)).fenced).toBe(true);
    // A later look finds that it is none any more.
    expect(await lapse()).toMatchObject({ isPromoted: null });
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

  test('keeps its place if nothing promotes by itself', async () => {
    expect(await promoteLapsed(env, former.id, SILENT)).toMatchObject({ isPromoted: null });
    expect((await rowOf(former)).standbyOf).toBe(null);
  });
});
