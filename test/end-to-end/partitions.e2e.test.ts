import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import type { HostPart } from '../../dev/stack/programs.ts';
import { Random } from '../simulation/random.ts';
import { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/free-port.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import {
  followThrough,
  GatewayProxy,
  memberOf,
  promotionsOf,
  WRITTEN,
  Writers,
  writerFaults,
} from '../support/stack/partitions.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';
import { type Cut, TcpProxy } from '../support/tcp-proxy.ts';

/** Its lease is 8 s. */
const PROMOTES_AFTER_S = 12;

let stack: Stack;
let proxy: GatewayProxy;
let operator: Api;

/** One of both machines. */
interface Machine {
  name: string;
  id: string;
  stateDir: string;
  port: number;
  start: (part: HostPart) => Promise<void>;
  kill: (part: HostPart) => Promise<void>;
  agentTool: Stack['agentTool'];
  /** How the other one reaches its PostgreSQL. */
  replication: TcpProxy;
  /** What is not started on it; null: nothing. */
  held: 'all' | 'agent' | null;
}

let machines: [Machine, Machine];
let writers: Writers;
let partitions = 0;
const ended = new AbortController();
const running: Promise<void>[] = [];

interface HostBody {
  id: string;
  name: string;
  linked: boolean;
  members: { host_id: string; role: string; lag_bytes: number | null }[];
}

const other = (machine: Machine) => machines.find((one) => one !== machine) as Machine;

const roles = async () => {
  const { body } = await operator.get<{ hosts: HostBody[] }>('/platform/v1/hosts');
  return new Map(
    body.hosts.map(({ id, linked, members }) => {
      const own = members.find(({ host_id }) => host_id === id);
      return [id, { role: own?.role, lag: own?.lag_bytes ?? null, linked }] as const;
    }),
  );
};

const primary = async () => {
  const known = await roles();
  const found = machines.find(({ id }) => known.get(id)?.role === 'primary');
  if (!found) throw new Error('no host is the primary');
  return found;
};

const promotions = () => promotionsOf(stack);

/** As a service manager does. */
async function manage(machine: Machine): Promise<void> {
  while (!ended.signal.aborted) {
    for (const part of ALL)
      if (machine.held === null || (machine.held === 'agent' && part !== 'agent'))
        void machine.start(part).catch(() => {});
    await sleep(300);
  }
}

const ALL = ['agent', 'pgbouncer', 'postgres'] as const;

/** Makes a fenced host the standby, by another copy. */
async function copyAgain(machine: Machine): Promise<void> {
  await eventually(async () => expect(memberOf(machine).role).toBe('fenced'));
  expect(writerFaults(writers.commits, promotions())).toEqual([]);
  machine.held = 'all';
  for (const part of ALL) await machine.kill(part);
  await machine.agentTool('copy-primary');
  followThrough(machine.stateDir, other(machine).replication.port);
  machine.held = null;
}

/** Waits for one primary that serves, and a standby that has everything. */
async function settle(): Promise<void> {
  await eventually(async () => {
    const known = await roles();
    for (const { id } of machines) expect(known.get(id)?.linked).toBe(true);
  });
  let serving = await primary();
  await eventually(async () => {
    // A busy machine can renew a lease too late, which is another promotion.
    serving = await primary();
    if ((await roles()).get(other(serving).id)?.role === 'fenced') await copyAgain(other(serving));
    const known = await roles();
    expect(known.get(other(serving).id)).toMatchObject({ role: 'standby', lag: 0, linked: true });
    expect(memberOf(serving)).toMatchObject({ role: 'primary', lease_seconds: 8 });
  });
  const before = writers.commits.length;
  await eventually(async () => expect(writers.commits.length).toBeGreaterThan(before + 5));
  expect(writers.commits.at(-1)?.host).toBe(serving.name);
}

interface Partition {
  links: readonly ('primary-gateway' | 'standby-gateway' | 'primary-standby')[];
  cut: Cut;
  seconds: number;
  agent: 'runs' | 'stopped' | 'killed';
  /** It lasts until the gateway has promoted the standby. */
  replaces?: boolean;
}

function planned(random: Random): Partition {
  const all = ['primary-gateway', 'standby-gateway', 'primary-standby'] as const;
  const links = all.filter((link) => random.chance(link === 'standby-gateway' ? 25 : 65));
  return {
    links: links.length === 0 ? ['primary-gateway'] : links,
    cut: random.pick(['refusing', 'silent']),
    seconds: random.int(2, 24),
    agent: random.weighted({ runs: 6, stopped: 2, killed: 2 }),
  };
}

async function partition({ links, cut, seconds, agent, replaces = false }: Partition): Promise<void> {
  const began = performance.now();
  const promoted = promotions();
  const serving = await primary();
  const following = other(serving);
  if (links.includes('primary-gateway')) proxy.cut(serving.id, cut);
  if (links.includes('standby-gateway')) proxy.cut(following.id, cut);
  if (links.includes('primary-standby')) serving.replication.cut(cut);
  const pid = agentOf(serving);
  if (agent === 'killed') {
    serving.held = 'agent';
    await serving.kill('agent');
  }
  if (agent === 'stopped') process.kill(pid, 'SIGSTOP');
  await sleep(seconds * 1_000);
  // A busy machine takes longer than the setting says.
  if (replaces) await eventually(async () => expect(await primary()).toBe(following));
  proxy.mend();
  serving.replication.mend();
  if (agent === 'stopped') process.kill(pid, 'SIGCONT');
  serving.held = null;
  await settle();
  expect(writerFaults(writers.commits, promotions()), JSON.stringify({ links, cut, seconds, agent })).toEqual(
    [],
  );
  partitions += 1;
  process.stderr.write(
    `MEASURED partition ${partitions}: cut for ${seconds} s, ${Math.round((performance.now() - began) / 1000 - seconds)} s until all was ` +
      `well, ${promotions() - promoted} promotions, ${writers.commits.length} commits by one host at a time so far\n`,
  );
}

const agentOf = ({ name }: Machine): number => {
  const { state } = stack;
  const pids = name === 'local' ? state.pids : state.other_hosts.find((host) => host.name === name)?.pids;
  return pids?.agent as number;
};

beforeAll(async () => {
  const port = await freePort();
  proxy = await GatewayProxy.start(port);
  stack = await startStack({
    restarts: false,
    env: {
      ...UNLIMITED,
      STANDBY: '1',
      GATEWAY_PORT: String(port),
      GATEWAY_URL: proxy.url,
      AUTO_PROMOTE_SECONDS: String(PROMOTES_AFTER_S),
      MEASURE_INTERVAL_SECONDS: '3600',
    },
  });
  operator = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET);
  const { body } = await operator.get<{ hosts: HostBody[] }>('/platform/v1/hosts');
  const idOf = (name: string) => body.hosts.find((host) => host.name === name)?.id as string;
  const { state, standby } = stack;
  machines = [
    {
      name: 'local',
      id: idOf('local'),
      held: null,
      agentTool: stack.agentTool,
      start: (part) => stack.start(part),
      kill: (part) => stack.kill(part),
      stateDir: join(state.host_dir, 'agent'),
      port: state.direct_port,
      replication: await TcpProxy.start(state.direct_port),
    },
    {
      name: 'local-standby',
      id: idOf('local-standby'),
      held: null,
      agentTool: standby.agentTool,
      start: (part) => stack.standby.start(part),
      kill: (part) => stack.standby.kill(part),
      stateDir: standby.stateDir,
      port: standby.ports.direct,
      replication: await TcpProxy.start(standby.ports.direct),
    },
  ];
  const [first, second] = machines;
  for (const part of ALL) await second.kill(part);
  followThrough(second.stateDir, first.replication.port);
  const api = new Api(stack.url, await stack.token());
  const project = await api.project('partitions');
  await api.allow(project.id);
  const { direct_url } = await api.credentials(project.id, 'main');
  await query(direct_url, WRITTEN);
  writers = new Writers(direct_url, Object.fromEntries(machines.map(({ name, port }) => [name, port])), 5);
  for (const machine of machines) running.push(manage(machine));
  await settle();
});

afterAll(async () => {
  ended.abort();
  await Promise.all([...running, writers?.stop()]);
  for (const { replication } of machines) replication.stop();
  proxy.stop();
  await stack.stop();
});

/** A primary that neither the gateway nor its standby reaches for long enough is replaced. */
const expectReplaced = (cut: Cut, agent: Partition['agent']): Promise<void> =>
  partition({
    links: ['primary-gateway', 'primary-standby'],
    cut,
    agent,
    seconds: PROMOTES_AFTER_S,
    replaces: true,
  });

test.runIf(IS_NIGHTLY)('a primary that is cut off closes itself, and its standby takes its place', async () =>
  expectReplaced('silent', 'runs'),
);

test.runIf(IS_NIGHTLY)(
  'a primary whose agent is stopped and that is cut off is closed by its guard',
  async () => expectReplaced('refusing', 'stopped'),
);

test.runIf(IS_NIGHTLY)(
  'a primary whose PostgreSQL has restarted without its agent is closed nevertheless',
  async () => {
    const before = await primary();
    before.held = 'agent';
    await before.kill('agent');
    await before.kill('postgres');
    await sleep(3_000);
    await expectReplaced('silent', 'killed');
  },
);

/** 200 partitions. */
const SEEDS = Array.from({ length: 40 }, (_, n) => n + 1);
const PARTITIONS = 5;

test.runIf(IS_NIGHTLY).each(SEEDS)(
  'random partitions never have two hosts that accept commits: seed %i',
  async (seed) => {
    const random = new Random(`partitions ${seed}`);
    for (let n = 0; n < PARTITIONS; n += 1) await partition(planned(random));
  },
);
