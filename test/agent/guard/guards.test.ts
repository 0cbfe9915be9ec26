import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { endianness, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { CopyRoom } from '../../../agent/cloning/copy-room.ts';
import { AutovacuumWorkers } from '../../../agent/guard/autovacuum.ts';
import { Connections, PooledClients } from '../../../agent/guard/connections.ts';
import { CopyGrowth } from '../../../agent/guard/copy-growth.ts';
import { DiskSpace } from '../../../agent/guard/disk-space.ts';
import { ProjectFiles } from '../../../agent/guard/files.ts';
import type {
  AutovacuumWorker,
  GuardedBranch,
  Observation,
  TenantSession,
} from '../../../agent/guard/guard.ts';
import { Locks } from '../../../agent/guard/locks.ts';
import type { NewMembers } from '../../../agent/guard/multixact-members.ts';
import { NotificationQueue } from '../../../agent/guard/notification-queue.ts';
import { OldTransactions } from '../../../agent/guard/old-transactions.ts';
import { TransactionIds } from '../../../agent/guard/transaction-ids.ts';
import { readSettings } from '../../../agent/process/settings.ts';
import { isShortOfInodes, readInodes, readVolumes } from '../../../agent/volumes/volumes.ts';
import { eventually } from '../../support/eventually.ts';
import { mountExt4, xfsHindrance } from '../../support/stack/xfs.ts';

const branchOf = (project_id: string, branch_id: string, tenant = project_id): GuardedBranch => ({
  kind: 'branch',
  project_id,
  tenant,
  branch_id,
  database: `db_${branch_id}`,
});
const hindrance = xfsHindrance();
const ATTACKER = branchOf('p1', 'attacker');
const VICTIM = branchOf('p2', 'victim');

let pids = 100;
const session = (branch: GuardedBranch | null, changes: Partial<TenantSession> = {}): TenantSession => {
  const pid = pids++;
  return {
    pid,
    kind: 'client',
    key: `${pid} 1`,
    branch,
    begun: pid,
    transactionSeconds: 0,
    transaction: null,
    hasId: false,
    newestId: null,
    ids: [],
    isActive: true,
    locks: 10,
    ...changes,
  };
};
const server = (sessions: TenantSession[], changes: Partial<Observation> = {}): Observation => ({
  at: 0,
  sessions,
  workers: [],
  connections: { max: 400, reserved: 20 },
  workersMax: 3,
  memberOffset: 0,
  nextId: 1_000,
  notificationShare: 0,
  ...changes,
});

describe('locks', () => {
  test('one session with too many is found, and its branch', () => {
    const greedy = session(ATTACKER, { locks: 5_001 });
    expect(new Locks().check(server([greedy, session(VICTIM, { locks: 5_000 })]))).toEqual([
      { sessions: [greedy], branches: [ATTACKER], blocksUnknown: true, detail: { locks: 5_001 } },
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
  const ofProject = (project_id: number) => new Connections({ project_id, tenant: 1_000 });
  const crowd = () => Array.from({ length: 5 }, () => session(ATTACKER));

  test('the newest above the limit, and a block only for who does it again and again', () => {
    const guard = ofProject(3);
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
    ofProject(limit)
      .check(server(sessions))
      .flatMap((finding) => finding.sessions);

  test('idle sessions of the branch with the most end first', () => {
    const large = branch('large');
    const small = branch('small');
    const first = idle(large);
    const newest = idle(large);
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

  const projects = (tenant: string, count: number, each: number, changes: Partial<TenantSession> = {}) =>
    Array.from({ length: count }, (_, n) => branchOf(`${tenant}-${n}`, `${tenant}-${n}`, tenant)).flatMap(
      (of) => Array.from({ length: each }, () => session(of, changes)),
    );
  const found = (guard: Connections, sessions: TenantSession[], max = 400) =>
    guard
      .check(server(sessions, { connections: { max, reserved: 20 } }))
      .flatMap((finding) => finding.sessions);

  test('all projects of a tenant have a limit together, below half of what there is', () => {
    const many = projects('attacker', 4, 10);
    const few = projects('victim', 2, 10);
    const limits = { project_id: 10, tenant: 30 };
    const ended = found(new Connections(limits), [...many, ...few]);
    expect(ended).toHaveLength(10);
    expect(new Set(ended.map(({ branch }) => branch?.tenant))).toEqual(new Set(['attacker']));
    expect(found(new Connections({ ...limits, tenant: 40 }), [...many, ...few])).toEqual([]);
    expect(found(new Connections({ ...limits, tenant: 40 }), many, 70)).toHaveLength(16);
  });

  test('a project above its own limit leaves its tenant what is below', () => {
    const sessions = [...projects('attacker', 1, 15), ...projects('attacker', 2, 10).slice(10)];
    expect(found(new Connections({ project_id: 10, tenant: 20 }), sessions)).toHaveLength(5);
  });

  test('above 80 % of all, the tenant with the most loses its newest idle sessions, above 90 % also others', () => {
    const limits = { project_id: 100, tenant: 100 };
    const idle = { isActive: false };
    const first = projects('one', 1, 90, idle);
    const second = projects('two', 1, 80);
    const third = [...projects('three', 1, 90), ...projects('three', 1, 10, idle)];
    const ofTwo = found(new Connections(limits), [...first, ...second, ...third], 330);
    expect(ofTwo).toEqual(third.slice(-6));
    expect(found(new Connections(limits), [...first, ...second], 330)).toEqual([]);
    expect(
      found(new Connections(limits), [...second, ...first, ...projects('four', 1, 95)], 280),
    ).toHaveLength(41);
  });

  test('as many as allowed are left alone', () => {
    expect(ofProject(5).check(server(crowd()))).toEqual([]);
  });
});

describe('clients of the pooler', () => {
  async function found(clients: Record<string, number>, branches: GuardedBranch[], limits = POOLER) {
    const troubles: unknown[] = [];
    const read: number[] = [];
    const guard = new PooledClients(
      limits,
      (name) => branches.find(({ database }) => database === name) ?? null,
      async (few) => {
        read.push(few);
        return new Map(Object.entries(clients));
      },
      (trouble) => troubles.push(trouble),
    );
    expect(guard.check()).toEqual([]);
    await setImmediate();
    const findings = guard.check();
    expect(troubles).toEqual([null]);
    return { read: read[0], branches: findings.flatMap(({ branches }) => branches) };
  }
  const POOLER = { limit: 200, accepted: 500 };
  const of = (tenant: string, ...ids: string[]) => ids.map((id) => branchOf(`p-${id}`, id, tenant));

  test('have a limit for all projects of a tenant, below half of what the pooler accepts', async () => {
    const acme = of('acme', 'a', 'b', 'c');
    const clients = { db_a: 90, db_b: 120, db_c: 60, db_victim: 130, db_unknown: 300 };
    expect(await found(clients, [...acme, VICTIM])).toEqual({ read: 200, branches: [acme[1]] });
    const large = { limit: 500, accepted: 800 };
    expect(await found({ db_a: 399 }, acme, large)).toEqual({ read: 399, branches: [] });
    expect(await found({ db_a: 400 }, acme, large)).toMatchObject({ branches: [acme[0]] });
  });

  test('of several tenants leave a fifth: the one with the most loses its largest branches', async () => {
    const acme = of('acme', 'a', 'b');
    const evil = of('evil', 'c', 'd');
    const three = [...acme, ...evil, VICTIM];
    const full = { db_a: 100, db_b: 90, db_c: 150, db_d: 45, db_victim: 10 };
    expect(await found(full, three)).toMatchObject({ branches: [] });
    expect(await found({ ...full, db_victim: 20 }, three)).toMatchObject({ branches: [evil[0]] });
    const more = { db_a: 100, db_b: 90, db_c: 100, db_d: 99, db_victim: 185 };
    expect(await found(more, three)).toMatchObject({ branches: [evil[0], acme[0]] });
  });
});

describe('transaction ids', () => {
  /** Four checks a second for `seconds`. @returns the branches that were found, by check */
  function run(
    seconds: number,
    idsPerSecond: number,
    sessionsAt: (check: number) => TenantSession[],
    members: NewMembers = { count: 0, ids: [] },
  ) {
    const guard = new TransactionIds(1_000, { read: () => members });
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

  test('a worker of a subscription that catches up is ended, and neither blocks its branch nor ends clients', () => {
    const guard = new TransactionIds(1_000, { read: () => ({ count: 0, ids: [] }) });
    const worker = counting(session(ATTACKER, { kind: 'apply', hasId: true }), 20_000);
    const client = session(ATTACKER);
    const found = Array.from({ length: 5 }, (_, check) =>
      guard.check(server([worker(check), client], { at: check * 250, nextId: (check * 20_000) / 4 })),
    ).flat();
    expect(found).toMatchObject([{ sessions: [{ kind: 'apply' }], branches: [], mayReturn: true }]);
  });
});

test('a transaction is old after an hour, and after a day in a database of an operation', () => {
  const guard = new OldTransactions(3_600);
  const old = (kind: TenantSession['kind'], transactionSeconds: number) =>
    guard.check(server([session(ATTACKER, { kind, transactionSeconds })])).length;
  expect([old('client', 3_601), old('apply', 3_601), old(null, 3_601)]).toEqual([1, 1, 1]);
  expect([old('masking', 3_601), old('load', 86_399), old('tablesync', 3_601)]).toEqual([0, 0, 0]);
  expect([old('masking', 86_401), old('load', 86_401)]).toEqual([1, 1]);
});

describe('members of multixacts', () => {
  const held = session(ATTACKER, { hasId: true, ids: [7], isActive: false });
  const victim = session(VICTIM, { hasId: true, ids: [9] });
  /** @returns the branches that were found in `seconds`, of so many members by check */
  function run(seconds: number, members: NewMembers, sessions: TenantSession[]) {
    const guard = new TransactionIds(1_000, { read: () => members });
    return new Set(
      Array.from({ length: seconds * 4 }, (_, check) =>
        guard.check(server(sessions, { at: check * 250 })).flatMap(({ branches }) => branches),
      ).flat(),
    );
  }

  test('those whose transactions still run belong to their branches', () => {
    const members = { count: 40_000, ids: [7, 7, 7, 8, 9] };
    expect(run(1, members, [held])).toEqual(new Set([ATTACKER]));
    expect(run(1, { ...members, ids: [8] }, [held])).toEqual(new Set());
  });

  test('the rest belongs to the branches that take ids', () => {
    const guard = new TransactionIds(1_000, { read: () => ({ count: 40_000, ids: [1, 2, 3] }) });
    const found = Array.from({ length: 8 }, (_, check) => {
      const looping = session(ATTACKER, { pid: 1, key: '1', hasId: true, transaction: check * 200 });
      return guard.check(server([looping, victim], { at: check * 250, nextId: check * 200 }));
    });
    expect(new Set(found.flat().flatMap(({ branches }) => branches))).toEqual(new Set([ATTACKER]));
  });

  test('what PostgreSQL writes at a checkpoint counts for nobody', () => {
    const guard = new TransactionIds(1_000, {
      read: (offset) => ({ count: offset, ids: [9] }),
    });
    const at = (check: number, memberOffset: number) =>
      guard.check(server([victim], { at: check * 300_000, memberOffset }));
    expect([at(0, 0), at(1, 50_000), at(3, 50_000), at(5, 50_000)].flat()).toEqual([]);
  });
});

describe('autovacuum', () => {
  const SHARE_SECONDS = 120;
  const worker = (
    branch: GuardedBranch | null,
    changes: Partial<AutovacuumWorker> = {},
  ): AutovacuumWorker => {
    const pid = pids++;
    const begun = Date.now() / 1000;
    const usual = { transactionSeconds: 1, isAnalysing: true, wait: null, relations: [pid] };
    return { pid, key: `${pid}`, branch, begun, ...usual, ...changes };
  };
  const check = (guard: AutovacuumWorkers, workers: AutovacuumWorker[], at = 0) =>
    guard.check(server([], { workers, at }));
  const off = async () => ['public.t'];

  test('a worker that sleeps, or analyses a table for very long, is ended', () => {
    const asleep = worker(ATTACKER, { wait: 'asleep', isAnalysing: false });
    const waiting = worker(ATTACKER, { wait: 'locked out', transactionSeconds: 11 });
    const busy = worker(ATTACKER, { transactionSeconds: 121 });
    const others = [worker(VICTIM, { transactionSeconds: 119 }), worker(VICTIM, { wait: 'locked out' })];
    const vacuum = worker(VICTIM, { transactionSeconds: 9_000, isAnalysing: false });
    const found = check(new AutovacuumWorkers(off), [asleep, waiting, busy, ...others, vacuum]);
    expect(found.flatMap(({ sessions }) => sessions)).toEqual([asleep, waiting, busy]);
  });

  test('a tenant that has several workers for half a minute loses the newest, while none is free', () => {
    const other = { ...branchOf('p3', 'other'), tenant: ATTACKER.tenant };
    const since = (seconds: number) => ({ begun: Date.now() / 1000 - seconds });
    const first = worker(ATTACKER, since(90));
    const newest = worker(other, since(31));
    const victim = worker(VICTIM, since(200));
    const ended = (workers: AutovacuumWorker[]) =>
      check(new AutovacuumWorkers(off), workers).flatMap(({ sessions }) => sessions);
    expect(ended([first, newest, victim])).toEqual([newest]);
    expect(ended([first, newest])).toEqual([]);
    expect(ended([first, worker(other, since(29)), victim])).toEqual([]);
    expect(ended([first, worker(other, { ...since(31), isAnalysing: false }), victim])).toEqual([first]);
    expect(ended([first, worker(null, since(31)), victim])).toEqual([]);
  });

  test('the second time its tables are named, and the branch is blocked when autovacuum is off', async () => {
    const named: (readonly number[])[] = [];
    const guard = new AutovacuumWorkers(async (_, relations) => {
      named.push(relations);
      return ['public.t'];
    });
    const asleep = (relation: number) => worker(ATTACKER, { wait: 'asleep', relations: [relation] });
    check(guard, [asleep(1), asleep(2)]);
    check(guard, [asleep(2)], 5_000);
    expect(named).toEqual([]);
    check(guard, [asleep(3)], 11_000);
    expect(named).toEqual([[1, 2, 3]]);
    await setImmediate();
    expect(check(guard, [], 11_250)).toEqual([
      { sessions: [], branches: [ATTACKER], detail: { autovacuum_off: ['public.t'] } },
    ]);
    expect(check(guard, [], 11_500)).toEqual([]);
  });

  test('while none is free, a tenant has a worker for two minutes, and for a fifth of the time after, in all its branches', () => {
    const others = [branchOf('p3', 'third'), branchOf('p4', 'fourth')].map((branch) => worker(branch));
    const guard = new AutovacuumWorkers(off);
    let at = 0;
    /** Seconds until a worker is ended, and which; null after `seconds`. */
    const first = (workers: AutovacuumWorker[], seconds: number) => {
      for (const until = at + seconds * 1000, from = at; at < until; ) {
        at += 250;
        const [ended] = check(guard, workers, at).flatMap(({ sessions }) => sessions);
        if (ended) return { ended, after: (at - from) / 1000 };
      }
      return null;
    };
    // A free worker, and one that vacuums, count for nobody.
    expect(first([worker(ATTACKER), worker(VICTIM)], 1_000)).toBeNull();
    const vacuums = worker(ATTACKER, { isAnalysing: false });
    const quick = () => worker({ ...VICTIM, tenant: `quick ${pids}` });
    expect(first([vacuums, quick(), quick()], 100)).toBeNull();

    const one = worker(ATTACKER, { begun: Date.now() / 1000 - 10 });
    const held = first([one, ...others], 300);
    expect(held?.ended).toBe(one);
    expect(held?.after).toBeCloseTo(SHARE_SECONDS / 0.8, -1);
    // The next worker is one of another branch of the same tenant.
    const next = worker({ ...branchOf('p5', 'fifth'), tenant: ATTACKER.tenant });
    expect(first([next, quick(), quick()], 1)?.ended).toBe(next);
    // Later it has its share again.
    expect(first([quick(), quick()], 60)).toBeNull();
    expect(first([next, quick(), quick()], 10)).toBeNull();
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
    const older = open(VICTIM, 50);
    const holder = open(VICTIM, 2);
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

  test('without a name, those of projects that fill the queue are ended', async () => {
    const neighbour = open(VICTIM, 50);
    const own = open(branchOf('p1', 'another branch'), 2);
    expect(await ended([neighbour, own], 0.6)).toEqual([own]);
    expect(await ended([neighbour], 0.81)).toEqual([]);
    expect(await ended([neighbour, own], 0.81)).toEqual([own]);
  });

  test('others are ended only after PostgreSQL has named nobody for long while it is nearly full', async () => {
    const neighbour = open(VICTIM, 50);
    const guard = watch(null);
    const at = (now: number, share = 0.81) =>
      guard
        .check(server([neighbour], { notificationShare: share, at: now }))
        .flatMap(({ sessions }) => sessions);
    expect([at(0), at(29_000), at(30_000, 0.8), at(31_000), at(60_000)].flat()).toEqual([]);
    expect(at(61_250)).toEqual([neighbour]);
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

test('a branch that makes files is blocked while its project has too many', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-files-'));
  const grows = branchOf('p1', 'grows');
  const rests = branchOf('p1', 'rests');
  const branches = new Map([
    ['1', grows],
    ['2', rests],
    ['3', VICTIM],
  ]);
  const make = (oid: string, from: number, to: number) => {
    mkdirSync(join(folder, 'base', oid), { recursive: true });
    for (let n = from; n < to; n++) writeFileSync(join(folder, 'base', oid, String(n)), '');
  };
  try {
    make('1', 0, 30);
    make('2', 0, 30);
    make('3', 0, 50);
    const guard = new ProjectFiles(folder, { all: () => branches }, () => {}, 65);
    let at = 0;
    /** What the check after a count has found. */
    const found = async () => {
      at += 2_000;
      guard.check(server([], { at }));
      return eventually(async () => {
        expect(guard.isCounting).toBe(false);
        return guard.check(server([], { at })).flatMap((finding) => finding.branches);
      });
    };
    expect(await found()).toEqual([]);
    make('1', 30, 34);
    make('3', 50, 60);
    expect(await found()).toEqual([]);
    make('1', 34, 40);
    expect(await found()).toEqual([grows]);
    // 4 and 6 files in two seconds each, and 10 by the victim.
    const growth = () => guard.takeGrowth().map(({ branch, filesPerSecond }) => [branch, filesPerSecond]);
    expect(growth()).toEqual([
      [grows, 3],
      [VICTIM, 5],
    ]);
    expect(growth()).toEqual([]);
    expect(await found()).toEqual([]);
    make('3', 60, 62);
    expect(await found()).toEqual([]);
    at += 60_000;
    expect(await found()).toEqual([]);
    expect(growth()).toEqual([]);
    rmSync(join(folder, 'base/1/39'));
    expect(await found()).toEqual([]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test.each(['trial', 'branch'] as const)(
  'a %s on which statements are tried may grow by as much as it had, and 1 GiB',
  async (kind) => {
    const copy: GuardedBranch = { ...branchOf('p1', 'tried'), kind };
    const loaded: GuardedBranch = { ...branchOf('p1', 'loaded'), kind: 'load' };
    const sizes = new Map<string, number | null>();
    const had = 10 * 2 ** 20;
    const guard = new CopyGrowth({
      of: async (database) => sizes.get(database) ?? null,
      ofRehearsed: async () => new Map(kind === 'branch' ? [[copy.database, had]] : []),
    });
    let at = 0;
    const findings = async (bytes: number | null) => {
      for (const { database } of [copy, loaded, VICTIM]) sizes.set(database, bytes);
      // Clients of a branch may leave and return. The bound does not begin again.
      at += 1_000;
      if (kind === 'branch') guard.check(server([], { at }));
      await setImmediate();
      at += 1_000;
      guard.check(server([session(copy), session(loaded), session(VICTIM)], { at }));
      await setImmediate();
      return guard.check(server([], { at }));
    };
    const most = 2 * had + 2 ** 30;
    expect(await findings(had)).toEqual([]);
    expect(await findings(null)).toEqual([]);
    expect(await findings(most)).toEqual([]);
    expect(await findings(most + 1)).toMatchObject([{ sessions: [], branches: [copy] }]);
  },
);

describe('disk', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'branchgate-disk-'));
    mkdirSync(join(folder, 'pg_wal'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  const GIB = 2 ** 30;

  /** @param speeds by branch and second: bytes of its database and of WAL, and files */
  async function check(
    minFreeMb: number,
    speeds: [GuardedBranch, { bytes?: number; wal?: number; files?: number }][],
  ) {
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
        bytes: new Map(speeds.map(([branch, { bytes = 0 }]) => [branch, GIB + (bytes * at) / 1_000])),
        wal: new Map(
          speeds.map(([branch, { wal = 0 }]) => [branch.branch_id, { branch, bytes: (wal * at) / 1_000 }]),
        ),
      }),
      () => speeds.map(([branch, { files = 0 }]) => ({ branch, filesPerSecond: files })),
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
      [VICTIM, { bytes: 600_000, wal: 3_000_000 }],
      [ATTACKER, { bytes: FAST }],
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

  test.skipIf(hindrance !== null)(
    `a branch that makes many files is found while a fifth of the inodes is left, and clones are refused${hindrance ? ` (${hindrance})` : ''}`,
    async () => {
      const volume = mountExt4(64 * 2 ** 20, 2_000);
      const spare = folder;
      const makeFiles = (count: number) => {
        for (let n = 0; n < count; n++) writeFileSync(join(folder, `${Math.random()}`), '');
      };
      try {
        folder = volume.folder;
        mkdirSync(join(folder, 'pg_wal'));
        const speeds: Parameters<typeof check>[1] = [
          [VICTIM, { files: 8, bytes: FAST }],
          [ATTACKER, { files: 200 }],
        ];
        expect(await check(16, speeds)).toEqual({ found: [], events: [] });
        const room = new CopyRoom({ PGDATA_DIR: folder, MIN_FREE_DISK_MB: 16 });
        const { free, floor } = (await readInodes(folder)) ?? expect.unreachable();
        await room.requireInodes(300);
        makeFiles(free - floor - 200);
        await expect(room.requireInodes(300)).rejects.toMatchObject({ code: 'HOST_FULL' });
        makeFiles(201);
        expect(await check(16, speeds)).toEqual({ found: [ATTACKER], events: ['guard.disk_low'] });
        const volumes = await readVolumes({ PGDATA_DIR: folder, POOLER_LOG: join(folder, 'log') });
        expect(volumes.map((volume) => isShortOfInodes(volume))).toEqual([true]);
      } finally {
        folder = spare;
        volume.remove();
      }
    },
  );

  test('with enough space, everybody may write', async () => {
    expect(await check(16, [[ATTACKER, { bytes: FAST }]])).toEqual({ found: [], events: [] });
  });
});
