import { renameSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { AttemptWindows } from '../../../agent/attempts/attempt-windows.ts';
import { AttemptWatch, WINDOW_MS } from '../../../agent/attempts/watch-attempts.ts';
import { readBlocks } from '../../../agent/blocks/stored-blocks.ts';
import { closeHost, type Host, openHost } from '../../../agent/host/host.ts';
import { currentPostgresLog } from '../../../agent/logs/postgres-log.ts';
import { recover } from '../../../agent/maintenance/recover.ts';
import { withAdminConsole } from '../../../agent/pooler/admin-console.ts';
import { readSettings } from '../../../agent/process/settings.ts';
import { LOG_FILENAME } from '../../../agent/servers/configuration.ts';
import { eventually } from '../../support/eventually.ts';
import {
  attempt,
  attempts,
  OUTSIDE,
  type Outcome,
  type Target,
  targetOf,
  tried,
} from '../../support/host/attempts.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { type Branch, type Port, Project, toolOptions } from '../../support/host/host-project.ts';
import { stalledLogin } from '../../support/host/stalled-login.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';

const PORTS = ['direct', 'pooled'] satisfies Port[];

interface Event {
  event: string;
  branch_id?: string;
  address?: string | null;
  count?: number;
}

let servers: TestHost;
let project: Project;
let main: Branch;
let other: Branch;
let events: Event[];
let stop: () => Promise<void>;
/** The clock of the windows stands still, however long the attempts of a test take. */
let now = 0;
const endWindows = () => {
  now += WINDOW_MS;
};

beforeAll(async () => {
  servers = await startHost({ settings: { CONNECTION_ATTEMPTS_PER_MINUTE: String(LIMIT) } });
  project = new Project(servers.host);
  main = await project.create('db_limits_prod', null);
  other = await project.create('db_limits_prod_br_other', main.database);
  events = [];
  stop = await watch(servers.host);
});
afterAll(async () => {
  await stop();
  await servers.stop();
});

// The tests of one branch must not affect another.
afterEach(async () => {
  for (const port of PORTS) expect(await attempt(targetOf(servers, port, other))).toBe('in');
});

/** Watches as an agent does. @returns a function that stops it */
async function watch(host: Host): Promise<() => Promise<void>> {
  const ending = new AbortController();
  const log = (event: string, fields?: object) => events.push({ event, ...fields });
  const watching = new AttemptWatch(host, log, () => now).run(ending.signal);
  return async () => {
    ending.abort();
    await watching;
  };
}

/** Attempts a minute: by night the default. */
const LIMIT = IS_NIGHTLY ? 50 : 24;
/** Clients that connect at the same time. */
const CROWD = IS_NIGHTLY ? 200 : 50;
/** Of clients that no rule admits: more than the limit together. */
const [SEQUENTIAL, CONCURRENT] = IS_NIGHTLY ? [70, 100] : [15, 20];
const count = vi.spyOn(AttemptWindows.prototype, 'count');

/**
 * Makes each attempt wait until the agent has counted the previous one, and after the last allowed one until
 * the branch is blocked, because both can take long on a busy machine. `npm run bench` measures clients that
 * do not wait.
 * @param before attempts already made
 */
function inStep(branch: Branch, before = 0) {
  const counted = () => count.mock.calls.filter(([id]) => id === branch.branch_id).length;
  let made = before;
  const isDone = () => (made < LIMIT ? counted() >= made : eventsOf(branch).length > 0);
  return async (outcome: Outcome) => {
    made += tried([outcome]);
    await vi.waitUntil(isDone, { timeout: 60_000, interval: 1 });
  };
}

let made = 0;
const newBranch = () => project.create(`db_limits_prod_br_n${made++}`, main.database);

const HERE_RULE = { branch_id: null, cidr: '127.0.0.1/32' };
const wrong = (target: Target): Target => ({ ...target, password: 'a guess' });
/** Branches that earlier tests left blocked. */
const leftBlocked: Branch[] = [];
const untilBlocked = (target: Target) =>
  eventually(async () => expect(await attempt(target)).toBe('refused'));
const untilOpen = (target: Target) => eventually(async () => expect(await attempt(target)).toBe('in'));
const eventsOf = (branch: Branch) => events.filter(({ branch_id }) => branch_id === branch.branch_id);

test('by default, a branch has 50 attempts a minute', () => {
  expect(readSettings({})).toMatchObject({
    CONNECTION_ATTEMPTS_PER_MINUTE: 50,
    CONNECTION_ATTEMPTS_SCOPE: 'branch',
  });
});

/** The first two are one of each port and of each kind of password. */
const EVERY_WAY = [
  { port: 'direct', password: 'wrong' },
  { port: 'pooled', password: 'right' },
  { port: 'direct', password: 'right' },
  { port: 'pooled', password: 'wrong' },
] as const;

test.each(firstByDay(1, EVERY_WAY))(
  'sequential attempts, $port, $password passwords',
  async ({ port, password }) => {
    const branch = await newBranch();
    const target = targetOf(servers, port, branch);
    const outcomes = await attempts(LIMIT + 20, password === 'right' ? target : wrong(target), {
      delay: inStep(branch),
    });
    expect(tried(outcomes)).toBe(LIMIT);
    for (const each of PORTS) expect(await attempt(targetOf(servers, each, branch))).toBe('refused');
    await eventually(async () =>
      expect(eventsOf(branch)).toEqual([
        {
          event: 'attempts.limited',
          branch_id: branch.branch_id,
          address: null,
          count: expect.any(Number),
        },
      ]),
    );
    leftBlocked.push(branch);
  },
);

test('attempts on both ports are counted together', async () => {
  const branch = await newBranch();
  const delay = inStep(branch);
  const [direct, pooled] = PORTS.map((port) => targetOf(servers, port, branch)) as [Target, Target];
  const half = LIMIT / 2;
  expect(await attempts(half, direct, { delay })).toEqual(Array(half).fill('in'));
  expect(await attempts(half - 1, pooled, { delay })).toEqual(Array(half - 1).fill('in'));
  expect(tried(await attempts(20, wrong(pooled), { delay }))).toBe(1);
  expect(await attempt(direct)).toBe('refused');
});

test.each(firstByDay(1, EVERY_WAY))(
  `${CROWD} concurrent attempts, $port, $password passwords: the branch is blocked afterwards`,
  async ({ port, password }) => {
    const branch = await newBranch();
    const target = targetOf(servers, port, branch);
    const guess = password === 'right' ? target : wrong(target);
    await Promise.all(Array.from({ length: CROWD }, () => attempt(guess)));
    await untilBlocked(target);
    await eventually(async () => expect(eventsOf(branch)[0]?.event).toBe('attempts.limited'));
    leftBlocked.push(branch);
  },
);

test.runIf(IS_NIGHTLY)('attempts from two addresses count together', async () => {
  const shared = new Project(servers.host, [HERE_RULE, { branch_id: null, cidr: '127.0.0.3/32' }]);
  const branch = await shared.create('db_together_prod', null);
  const target = targetOf(servers, 'direct', branch);
  const delay = inStep(branch);
  const half = LIMIT / 2;
  await attempts(half, wrong(target), { address: '127.0.0.3', delay });
  expect(await attempts(half, target, { delay })).toEqual(Array(half).fill('in'));
  expect(eventsOf(branch)).toMatchObject([{ event: 'attempts.limited', address: null }]);
  for (const address of ['127.0.0.1', '127.0.0.3']) expect(await attempt(target, address)).toBe('refused');
});

test("with the scope of addresses, wrong passwords from one do not block another's, on either port", async () => {
  await stop();
  const settings = { ...servers.settings, CONNECTION_ATTEMPTS_SCOPE: 'address' as const };
  stop = await watch(Object.assign(Object.create(servers.host) as Host, { settings }));
  const elsewhere = '127.0.0.3';
  const shared = new Project(servers.host, [HERE_RULE, { branch_id: null, cidr: `${elsewhere}/32` }]);
  const branch = await shared.create('db_shared_prod', null);
  const [direct, pooled] = PORTS.map((port) => targetOf(servers, port, branch)) as [Target, Target];
  await attempts(LIMIT / 2 + 5, wrong(direct), { address: elsewhere });
  await attempts(LIMIT / 2 + 5, wrong(pooled), { address: elsewhere });
  await eventually(async () =>
    expect(eventsOf(branch)).toMatchObject([{ event: 'attempts.limited', address: `${elsewhere}/32` }]),
  );
  for (const target of [direct, pooled]) {
    expect(await attempt(target, elsewhere)).toBe('refused');
    expect(await attempt(target)).toBe('in');
  }
  // Refused attempts count for nothing, so those of the owner are still far from any limit.
  expect(await attempts(LIMIT - 10, direct)).toEqual(Array(LIMIT - 10).fill('in'));
  await stop();
  stop = await watch(servers.host);
});

test.runIf(IS_NIGHTLY)(
  'logins that stall are attempts, also when their clients close before PostgreSQL does',
  async () => {
    const branch = await newBranch();
    const target = targetOf(servers, 'direct', branch);
    const stalled = await Promise.all(Array.from({ length: LIMIT }, () => stalledLogin(target)));
    await eventually(async () => expect(eventsOf(branch)).toHaveLength(1));
    for (const socket of stalled) socket.destroy();
    expect(await attempt(target)).toBe('refused');
    leftBlocked.push(branch);
  },
);

test.each(PORTS)('attempts of unauthorised clients do not block the branch on the %s port', async (port) => {
  const branch = await newBranch();
  const target = targetOf(servers, port, branch);
  const outcomes = [
    ...(await attempts(SEQUENTIAL, target, { address: OUTSIDE })),
    ...(await Promise.all(Array.from({ length: CONCURRENT }, () => attempt(wrong(target), OUTSIDE)))),
  ];
  expect(new Set(outcomes)).toEqual(new Set(['refused']));
  // These follow in the log: if the others counted, they would exceed the limit.
  expect(await attempts(LIMIT - 1, target)).toEqual(Array(LIMIT - 1).fill('in'));
  expect(eventsOf(branch)).toEqual([]);
});

test('sessions of the pooler and the agent over unix sockets are not attempts', async () => {
  const branch = await newBranch();
  for (let proofs = 0; proofs < 10; proofs++) await project.prove(branch);
  await Promise.all(Array.from({ length: 20 }, () => project.prove(branch)));
  const pooled = targetOf(servers, 'pooled', branch);
  expect(await attempts(LIMIT - 1, pooled)).toEqual(Array(LIMIT - 1).fill('in'));
  expect(eventsOf(branch)).toEqual([]);
});

test('no attempt is missed when the logs are rotated', async () => {
  const branch = await newBranch();
  const [direct, pooled] = PORTS.map((port) => targetOf(servers, port, branch)) as [Target, Target];
  const quarter = Math.floor((LIMIT - 2) / 4);
  await attempts(quarter, direct);
  await attempts(quarter, pooled);
  renameSync(servers.settings.POOLER_LOG, `${servers.settings.POOLER_LOG}.${made}`);
  await withAdminConsole(servers.settings, (console) => console.query('RELOAD'));
  await servers.query(`ALTER SYSTEM SET log_filename = 'after-${made}-%a.log'`);
  await servers.query('SELECT pg_reload_conf()');
  const delay = inStep(branch, 2 * quarter);
  await attempts(quarter, direct, { delay });
  await attempts(quarter, pooled, { delay });
  expect(tried(await attempts(20, direct, { delay }))).toBe(LIMIT - 4 * quarter);
});

test('a control tool lists blocked branches and leaves them blocked', async () => {
  const branch = await newBranch();
  const target = targetOf(servers, 'pooled', branch);
  await attempts(LIMIT + 10, target);
  await eventually(async () => expect(eventsOf(branch)).toHaveLength(1));
  const rules = [HERE_RULE, { branch_id: null, cidr: '192.0.2.0/24' }];
  const apply = await servers.tool(
    'access',
    'apply',
    ...toolOptions({
      project_id: project.id,
      access: JSON.stringify({ revision: ++project.revision, rules }),
    }),
  );
  expect(apply.exitCode).toBe(0);
  expect(await attempt(target)).toBe('refused');
  const list = await servers.tool('list');
  expect(list.stdout).toMatch(
    new RegExp(`^${branch.database} is blocked for all addresses until \\S+Z: `, 'm'),
  );
  expect(list.stdout).not.toMatch(new RegExp(`^${other.database} is blocked`, 'm'));
  const blocks = await readBlocks(servers.host.postgres);
  expect(blocks.filter(({ branch_id }) => branch_id === branch.branch_id)).toMatchObject([
    { reason: 'attempts', until: expect.any(Date) },
  ]);
});

test('a branch opens on both ports when its window ends', async () => {
  expect(leftBlocked).not.toHaveLength(0);
  endWindows();
  for (const branch of leftBlocked) {
    for (const port of PORTS) await untilOpen(targetOf(servers, port, branch));
    await eventually(async () => expect(eventsOf(branch).at(-1)?.event).toBe('attempts.open_again'));
  }
  expect((await servers.tool('list')).stdout).not.toContain('is blocked');
});

test.runIf(IS_NIGHTLY)(
  'a restarted agent blocks a branch for the rest of its window, and then opens it',
  async () => {
    const branch = await newBranch();
    const target = targetOf(servers, 'direct', branch);
    await attempts(LIMIT + 10, target);
    await eventually(async () => expect(eventsOf(branch)).toHaveLength(1));
    await stop();
    const next = await openHost(servers.settings);
    expect(await recover(next)).toEqual([]);
    const stopNext = await watch(next);
    expect(tried(await attempts(10, target))).toBe(0);
    await eventually(async () => {
      // The agent that starts may not know of the window before.
      endWindows();
      expect(await attempt(target)).toBe('in');
    });
    await eventually(async () => expect(eventsOf(branch).at(-1)?.event).toBe('attempts.open_again'));
    await stopNext();

    // No agent is running when the window ends: the branch opens when one starts.
    stop = await watch(servers.host);
    await attempts(LIMIT + 10, target);
    await eventually(async () => expect(eventsOf(branch)).toHaveLength(3));
    await stop();
    await servers.query('UPDATE blocked_address SET until = clock_timestamp()');
    expect((await servers.tool('list')).stdout).not.toContain('is blocked');
    expect(await attempt(target)).toBe('refused');
    expect(await recover(next)).toEqual([]);
    expect(await attempt(target)).toBe('in');
    await closeHost(next);
    stop = await watch(servers.host);
  },
);

test.runIf(IS_NIGHTLY)('attempts are counted while PostgreSQL begins other logs', async () => {
  const branch = await newBranch();
  await servers.query("ALTER SYSTEM SET log_rotation_size = '1kB'");
  await servers.query(`ALTER SYSTEM SET log_filename = '${LOG_FILENAME}'`);
  await servers.query('SELECT pg_reload_conf()');
  const step = inStep(branch);
  const logs = new Set<string>();
  let made = 0;
  const outcomes = await attempts(LIMIT + 10, wrong(targetOf(servers, 'direct', branch)), {
    delay: async (outcome) => {
      await step(outcome);
      // The logs of one second have the same name, and are one file.
      made += 1;
      if (made % 20 === 0) await sleep(1_100);
      logs.add(currentPostgresLog(servers.settings) ?? '');
    },
  });
  expect(tried(outcomes)).toBe(LIMIT);
  expect(logs.size).toBeGreaterThan(1);
  leftBlocked.push(branch);
  await servers.query('ALTER SYSTEM RESET log_rotation_size');
  await servers.query('SELECT pg_reload_conf()');
});

test('doctor reports when attempts cannot be counted', async () => {
  expect((await servers.tool('doctor')).stdout).not.toContain('attempts are not limited');
  await servers.query("ALTER SYSTEM SET log_connections = 'authorization'");
  await servers.query('SELECT pg_reload_conf()');
  renameSync(servers.settings.POOLER_LOG, `${servers.settings.POOLER_LOG}.away`);
  const { stdout } = await servers.tool('doctor');
  expect(stdout).toContain('PostgreSQL does not log connections');
  expect(stdout).toContain("cannot read both servers' logs");
});
