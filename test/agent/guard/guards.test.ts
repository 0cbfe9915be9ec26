import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { endianness, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { ProjectConnections } from '../../../agent/guard/connections.ts';
import { DiskSpace } from '../../../agent/guard/disk-space.ts';
import type { GuardedBranch, Observation, TenantSession } from '../../../agent/guard/guard.ts';
import { Locks } from '../../../agent/guard/locks.ts';
import { NotificationQueue } from '../../../agent/guard/notification-queue.ts';
import { TransactionIds } from '../../../agent/guard/transaction-ids.ts';
import { readSettings } from '../../../agent/process/settings.ts';

const branchOf = (project_id: string, branch_id: string): GuardedBranch => ({
  project_id,
  branch_id,
  database: `db_${branch_id}`,
});
const ATTACKER = branchOf('p1', 'attacker');
const VICTIM = branchOf('p2', 'victim');

let pids = 100;
const session = (branch: GuardedBranch | null, changes: Partial<TenantSession> = {}): TenantSession => {
  const pid = pids++;
  return {
    pid,
    key: `${pid} 1`,
    branch,
    begun: pid,
    transactionSeconds: 0,
    transaction: null,
    hasId: false,
    newestId: null,
    isActive: true,
    locks: 10,
    ...changes,
  };
};
const server = (sessions: TenantSession[], changes: Partial<Observation> = {}): Observation => ({
  at: 0,
  sessions,
  nextId: 1_000,
  notificationShare: 0,
  ...changes,
});

describe('locks', () => {
  test('one session with too many is found, and its branch', () => {
    const greedy = session(ATTACKER, { locks: 5_001 });
    expect(new Locks().check(server([greedy, session(VICTIM, { locks: 5_000 })]))).toEqual([
      { sessions: [greedy], branches: [ATTACKER], detail: { locks: 5_001 } },
    ]);
  });

  test('a session of an unknown database is ended all the same', () => {
    const greedy = session(null, { locks: 9_000 });
    expect(new Locks().check(server([greedy]))).toMatchObject([{ sessions: [greedy], branches: [] }]);
  });

  test('many sessions of a project together: its branch with the most', () => {
    const small = branchOf('p1', 'small');
    const most = Array.from({ length: 9 }, () => session(ATTACKER, { locks: 4_900 }));
    const others = [session(small, { locks: 4_900 }), session(small, { locks: 4_900 })];
    const victims = Array.from({ length: 10 }, () => session(VICTIM, { locks: 4_900 }));
    expect(new Locks().check(server([...most, ...others, ...victims]))).toEqual([
      { sessions: most, branches: [ATTACKER], detail: { locks: 44_100, locks_together: 53_900 } },
    ]);
  });

  test('many projects together: their branches with the most, until the rest is within the limit of the host', () => {
    const attackers = Array.from({ length: 5 }, (_, n) => branchOf(`attacker ${n}`, `branch ${n}`));
    const sessions = attackers.flatMap((branch, n) =>
      Array.from({ length: 10 }, () => session(branch, { locks: 4_500 + n })),
    );
    const victim = session(VICTIM, { locks: 4_990 });
    const found = new Locks().check(server([victim, ...sessions]));
    expect(found.flatMap(({ branches }) => branches)).toEqual([attackers[4]]);
    expect(found[0]?.sessions).toHaveLength(10);
    const without = sessions.filter(({ branch }) => branch !== attackers[4]);
    expect(new Locks().check(server([victim, ...without]))).toEqual([]);
  });
});

describe('connections', () => {
  const crowd = () => Array.from({ length: 5 }, () => session(ATTACKER));

  test('the newest above the limit, and a block only for who does it again and again', () => {
    const guard = new ProjectConnections(3);
    const sessions = crowd();
    const newest = sessions.slice(3);
    const check = (at: number) => guard.check(server([...sessions.toReversed(), session(VICTIM)], { at }));
    expect(check(0)).toMatchObject([{ sessions: newest, branches: [] }]);
    // They take a moment to end.
    expect(check(250)).toMatchObject([{ branches: [] }]);
    expect(check(1_250)).toMatchObject([{ branches: [] }]);
    expect(check(2_500)).toMatchObject([{ sessions: newest, branches: [ATTACKER] }]);
    expect(check(13_000)).toMatchObject([{ branches: [] }]);
  });

  const MAIN = { ...ATTACKER, database: 'db_app_prod' };
  const branch = (slug: string) => ({ ...branchOf('p1', slug), database: `db_app_prod_br_${slug}` });
  const idle = (of: GuardedBranch) => session(of, { isActive: false });
  const ended = (limit: number, sessions: TenantSession[]) =>
    new ProjectConnections(limit).check(server(sessions)).flatMap((finding) => finding.sessions);

  test('idle sessions of the branch with the most end first', () => {
    const [large, small] = [branch('large'), branch('small')];
    const [first, newest] = [idle(large), idle(large)];
    const inTransaction = session(large, { isActive: false, transactionSeconds: 1 });
    const sessions = [first, newest, session(large), inTransaction, idle(small), session(small)];
    expect(ended(5, sessions)).toEqual([newest]);
    expect(ended(4, sessions)).toEqual([first, newest]);
    expect(ended(3, sessions).slice(1)).toEqual([first, newest]);
  });

  test('sessions of main end last, however many there are and however new', () => {
    const branches = ['one', 'two', 'three'].map((slug) => session(branch(slug)));
    const main = Array.from({ length: 5 }, () => idle(MAIN));
    expect(ended(6, [...branches, ...main])).toEqual(branches.slice(1));
    expect(ended(4, [...branches, ...main])).toEqual([main[4], ...branches]);
  });

  test('as many as allowed are left alone', () => {
    expect(new ProjectConnections(5).check(server(crowd()))).toEqual([]);
  });
});

describe('transaction ids', () => {
  /** Four checks a second for `seconds`. @returns the branches that were found, by check */
  function run(seconds: number, idsPerSecond: number, sessionsAt: (check: number) => TenantSession[]) {
    const guard = new TransactionIds(1_000);
    const found = Array.from({ length: seconds * 4 }, (_, check) =>
      guard
        .check(server(sessionsAt(check), { at: check * 250, nextId: (check * idsPerSecond) / 4 }))
        .flatMap(({ branches }) => branches),
    ).flat();
    return [...new Set(found)];
  }
  const looping = session(ATTACKER, { hasId: true });
  const counting = (one: TenantSession, perSecond: number) => (check: number) => ({
    ...one,
    transaction: 1 + (check * perSecond) / 4,
    newestId: check * 1_000,
  });

  test('a branch that takes more than allowed for long is found', () => {
    const attacker = counting(looping, 20_000);
    const victim = counting(session(VICTIM, { hasId: true }), 40);
    expect(run(2, 20_040, (check) => [attacker(check), victim(check)])).toEqual([ATTACKER]);
  });

  test('a burst is allowed, and the rate for ever', () => {
    const burst = counting(looping, 8_000);
    expect(run(1, 8_000, (check) => [burst(check)])).toEqual([]);
    const steady = counting(looping, 1_000);
    expect(run(120, 1_000, (check) => [steady(check)])).toEqual([]);
  });

  test('transactions that only read take none', () => {
    const reading = counting(session(VICTIM), 50_000);
    expect(run(10, 0, (check) => [reading(check)])).toEqual([]);
    // Another tenant's ids are not theirs either.
    const attacker = counting(looping, 30_000);
    expect(new Set(run(3, 30_000, (check) => [reading(check), attacker(check)]))).toEqual(
      new Set([ATTACKER]),
    );
  });

  test('the rest belongs to long transactions that hold another id than before', () => {
    const nested = (check: number) => ({ ...looping, transaction: 7, newestId: check });
    const long = session(VICTIM, { hasId: true, transaction: 9, newestId: 3 });
    expect(run(2, 20_000, (check) => [nested(check), long])).toEqual([ATTACKER]);
  });
});

describe('queue of NOTIFY', () => {
  let folder: string;
  const FILLS = branchOf('p1', 'fills');
  /** By oid. */
  const directory = new Map([
    ['1', FILLS],
    ['2', VICTIM],
    ['3', branchOf('p1', 'third')],
  ]);
  /** Pages with notifications of a database, by oid. */
  function queue(pages: Record<string, number>): void {
    const page = (oid: string) => {
      const bytes = Buffer.alloc(8_192);
      bytes[endianness() === 'LE' ? 4 : 7] = Number(oid);
      return bytes;
    };
    const all = Object.entries(pages).flatMap(([oid, count]) =>
      Array.from({ length: count }, () => page(oid)),
    );
    writeFileSync(join(folder, 'pg_notify/0000'), Buffer.concat(all));
  }
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'branchgate-notify-'));
    mkdirSync(join(folder, 'pg_notify'));
  });
  beforeEach(() => queue({ 1: 98, 2: 2 }));
  afterAll(() => rmSync(folder, { recursive: true }));

  const watch = (named: number | null) =>
    new NotificationQueue(folder, { find: (oid) => directory.get(oid) ?? null }, async () => named);
  const open = (branch: GuardedBranch, transactionSeconds: number) => session(branch, { transactionSeconds });
  /** @returns the sessions found by the second of two checks, the first of which has asked PostgreSQL */
  async function ended(sessions: TenantSession[], share: number, named: TenantSession | null = null) {
    const guard = watch(named?.pid ?? null);
    guard.check(server(sessions, { notificationShare: share }));
    await setImmediate();
    const findings = guard.check(server(sessions, { notificationShare: share, at: 250 }));
    expect(findings[0]).toMatchObject({ branches: [FILLS] });
    return findings.flatMap((finding) => finding.sessions);
  }

  test('the session that PostgreSQL names is ended, and not the oldest', async () => {
    const [older, holder] = [open(VICTIM, 50), open(VICTIM, 2)];
    expect(await ended([older, holder], 0.6, holder)).toEqual([holder]);
    expect(await ended([older, holder], 0.5, holder)).toEqual([]);
  });

  test('one that has ended its transaction since holds nothing up', async () => {
    const guard = watch(7);
    const at = (now: number, transactionSeconds: number) =>
      guard
        .check(server([session(VICTIM, { pid: 7, transactionSeconds })], { notificationShare: 0.6, at: now }))
        .flatMap(({ sessions }) => sessions);
    at(0, 3);
    await setImmediate();
    expect(at(5_000, 4)).toEqual([]);
    await setImmediate();
    expect(at(5_250, 4.25)).toHaveLength(1);
  });

  test('without a name, those of projects that fill the queue are ended, and others only when it is nearly full', async () => {
    const [neighbour, own] = [open(VICTIM, 50), open(branchOf('p1', 'another branch'), 2)];
    expect(await ended([neighbour, own], 0.6)).toEqual([own]);
    expect(await ended([neighbour], 0.8)).toEqual([]);
    expect(await ended([neighbour], 0.81)).toEqual([neighbour]);
    expect(await ended([neighbour, own], 0.81)).toEqual([own, neighbour]);
  });

  test('branches that fill it together are blocked when half of it is in use', () => {
    queue({ 1: 45, 2: 9, 3: 46 });
    const blocked = (notificationShare: number) =>
      watch(null)
        .check(server([], { notificationShare }))
        .flatMap(({ branches }) => branches.map(({ database }) => database));
    expect(blocked(0.5)).toEqual([]);
    expect(blocked(0.51)).toEqual([FILLS.database, directory.get('3')?.database]);
  });
});

describe('disk', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'branchgate-disk-'));
    mkdirSync(join(folder, 'pg_wal'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  const GIB = 2 ** 30;

  /** @param speeds bytes a second by branch: of its files, and of WAL */
  async function check(minFreeMb: number, speeds: [GuardedBranch, { files?: number; wal?: number }][]) {
    let at = 0;
    const events: string[] = [];
    const settings = readSettings({
      PGDATA_DIR: folder,
      POOLER_LOG: join(folder, 'pgbouncer.log'),
      MIN_FREE_DISK_MB: String(minFreeMb),
    });
    const guard = new DiskSpace(
      settings,
      (event) => events.push(event),
      async () => ({
        at,
        files: new Map(speeds.map(([branch, { files = 0 }]) => [branch, GIB + (files * at) / 1_000])),
        wal: new Map(
          speeds.map(([branch, { wal = 0 }]) => [branch.branch_id, { branch, bytes: (wal * at) / 1_000 }]),
        ),
      }),
    );
    const found: GuardedBranch[] = [];
    for (; at <= 3_000; at += 1_000) {
      const findings = await guard.check(server([], { at }));
      found.push(...findings.flatMap(({ branches }) => branches));
      await setImmediate();
    }
    return { found: [...new Set(found)], events };
  }

  // More than any disk of a test machine has free in a minute, and a limit above what it has at all.
  const FAST = 100 * GIB;
  const MORE_THAN_FREE_MB = 1_048_576;

  test('on a volume with little space, the branch that would fill it within a minute is found', async () => {
    const { found, events } = await check(MORE_THAN_FREE_MB, [
      [VICTIM, { files: 600_000, wal: 3_000_000 }],
      [ATTACKER, { files: FAST }],
    ]);
    expect({ found, events }).toEqual({ found: [ATTACKER], events: ['guard.disk_low'] });
  });

  test('WAL alone counts too', async () => {
    const { found } = await check(MORE_THAN_FREE_MB, [
      [VICTIM, {}],
      [ATTACKER, { wal: FAST }],
    ]);
    expect(found).toEqual([ATTACKER]);
  });

  test('with enough space, everybody may write', async () => {
    expect(await check(16, [[ATTACKER, { files: FAST }]])).toEqual({ found: [], events: [] });
  });
});
