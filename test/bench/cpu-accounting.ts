import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { readProcessTimes } from '../../agent/measurement/server-sample.ts';
import { startHost, type TestHost } from '../support/host/host.ts';
import { type Branch, connect, Project } from '../support/host/host-project.ts';
import { branchIn, TestMeter } from '../support/host/metering.ts';
import type { Goal, Report } from './report.ts';
import { median } from './rounds.ts';

const ROUNDS = 7;
/** How long the tenants work between two measurements. */
const WORK_MS = 4_000;
/** Time for the postmaster to reap its last child. */
const SETTLE_MS = 100;

/** Permitted deviation of the reported from the actual CPU time, in percent. */
const LIMITS = { persistent: 10, 'connect-per-query': 20 };

type Kind = keyof typeof LIMITS;

interface Tenant {
  name: string;
  kind: Kind;
  /** Rows that each of its queries hashes. */
  rows: number;
}

/** About 30 ms of work, and less than a login takes. */
const LARGE = 50_000;
const SMALL = 2_000;

/** Tenants that work at the same time. */
const CASES: Tenant[][] = [
  [
    { name: 'persistent, large queries', kind: 'persistent', rows: LARGE },
    { name: 'persistent, small queries', kind: 'persistent', rows: SMALL },
  ],
  [
    { name: 'connect-per-query, large queries', kind: 'connect-per-query', rows: LARGE },
    { name: 'connect-per-query, small queries', kind: 'connect-per-query', rows: SMALL },
  ],
  [
    { name: 'persistent next to connect-per-query', kind: 'persistent', rows: LARGE },
    { name: 'connect-per-query next to persistent', kind: 'connect-per-query', rows: LARGE },
  ],
];

const METHOD = `Two tenants work at the same time on one host with the product's configuration, autovacuum included, each with one \
client on the direct port that queries without a pause for ${WORK_MS / 1000} s. A measurement is made before and \
after, and the server's processes are polled every second, as the agent does it. A *persistent* client keeps its \
session, a *connect-per-query* client opens one for each query. The pairs alternate in ${ROUNDS} rounds, after one \
that is discarded. *Reported* is what the measurement adds to the \`cpu_seconds\` of each tenant's branch. *Actual* is \
what the kernel's \`/proc/<pid>/schedstat\` shows for the processes that served the tenant, each read after its last \
response. The CPU they used from then until they exited is what the postmaster's ended children used beyond that, the \
same for each session. The limit applies to the deviation of the median of reported ÷ actual from 1. All queries \
compute. For connect-per-query clients, waiting for a lock, for instance, cannot be distinguished from computing: with \
30 ms of it in each query one was charged 1.6 times its CPU, and its neighbour 0.75 times ([what is \
measured](../measurement.md)).`;

/** @param signal aborts it */
export async function measureCpuAccounting(signal: AbortSignal): Promise<Report> {
  const servers = await startHost();
  try {
    const branches = [await makeBranch(servers, 'ada'), await makeBranch(servers, 'bob')] as const;
    const percent = samples();
    const seconds = samples();
    for (let round = 0; round <= ROUNDS; round++) {
      for (const tenants of CASES) {
        signal.throwIfAborted();
        for (const { name, reported, used } of await compare(servers, branches, tenants)) {
          if (round === 0) continue;
          percent[name]?.push((100 * reported) / used);
          seconds[name]?.push(used);
        }
      }
    }
    const [row] = await servers.query<{ server_version: string }>('SHOW server_version');
    return {
      title: 'Accuracy of CPU accounting',
      method: METHOD,
      setting: { PostgreSQL: row?.server_version ?? '' },
      goals: CASES.flat().map(
        ({ name, kind }): Goal => ({
          name: `deviation of reported CPU: ${name}`,
          measured: Math.abs(median(percent[name] ?? []) - 100),
          limit: LIMITS[kind],
          unit: '%',
        }),
      ),
      counts: {
        'Reported CPU time, in percent of the actual': percent,
        'Actual CPU time, in seconds': seconds,
      },
    };
  } finally {
    await servers.stop();
  }
}

const samples = () => Object.fromEntries(CASES.flat().map(({ name }) => [name, [] as number[]]));

const makeBranch = ({ host }: TestHost, app: string) => new Project(host).create(`db_${app}_prod`, null);

/** @returns CPU seconds reported for each tenant, and used by it, from one measurement to the next */
async function compare(servers: TestHost, branches: readonly [Branch, Branch], tenants: Tenant[]) {
  const meter = new TestMeter(servers);
  const ended = await endedChildren(servers);
  const clients = await Promise.all(
    tenants.map(async ({ name, kind, rows }, n) => {
      const branch = branches[n % 2] as Branch;
      const login = () => connect(servers.host, 'direct', branch, 'read_write');
      return { name, branch, ...(await CLIENTS[kind](login, rows)) };
    }),
  );
  const before = await meter.meter.measure();
  const endedBefore = ended();
  const seen = await meter.pollDuring(async () => {
    const until = performance.now() + WORK_MS;
    const all = await Promise.all(clients.map(({ work }) => work(until)));
    await sleep(SETTLE_MS);
    return all;
  });
  const endedSeen = seen.reduce((sum, { cpu, sessions }) => (sessions > 0 ? sum + cpu : sum), 0);
  const sessions = seen.reduce((sum, one) => sum + one.sessions, 0);
  const ending = sessions > 0 ? (ended() - endedBefore - endedSeen) / sessions : 0;
  const after = await meter.meter.measure();
  await Promise.all([meter.meter.close(), ...clients.map(({ close }) => close())]);
  return clients.map(({ name, branch }, n) => ({
    name,
    reported: branchIn(after, branch).cpu_seconds - branchIn(before, branch).cpu_seconds,
    used: (seen[n]?.cpu ?? 0) + (seen[n]?.sessions ?? 0) * ending,
  }));
}

/** CPU seconds of the server's processes that have ended. */
async function endedChildren(servers: TestHost): Promise<() => number> {
  const [row] = await servers.query<{ pid: string }>(
    String.raw`SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1) AS pid`,
  );
  return () => readProcessTimes(Number(row?.pid))?.childrenCpu ?? Number.NaN;
}

/** CPU seconds of processes up to their last responses, and how many of them have ended since. */
interface Seen {
  cpu: number;
  sessions: number;
}

interface Client {
  /** @param until on the clock of `performance.now()` */
  work: (until: number) => Promise<Seen>;
  close: () => Promise<void>;
}

const CLIENTS: Record<Kind, (login: () => Promise<pg.Client>, rows: number) => Promise<Client>> = {
  persistent: async (login, rows) => {
    const session = await login();
    const pid = await hash(session, rows);
    return {
      work: async (until) => {
        const before = cpuOf(pid);
        while (performance.now() < until) await hash(session, rows);
        return { cpu: cpuOf(pid) - before, sessions: 0 };
      },
      close: () => session.end(),
    };
  },
  'connect-per-query': async (login, rows) => ({
    work: async (until) => {
      const seen = { cpu: 0, sessions: 0 };
      while (performance.now() < until) {
        const session = await login();
        seen.cpu += cpuOf(await hash(session, rows));
        seen.sessions += 1;
        await session.end();
      }
      return seen;
    },
    close: async () => {},
  }),
};

/** Makes the server compute. @returns the process ID that did */
async function hash(session: pg.Client, rows: number): Promise<number> {
  const { rows: found } = await session.query<{ pid: number }>(
    `SELECT pg_backend_pid() AS pid, max(md5(n::text)) FROM generate_series(1, ${rows}) AS n`,
  );
  return found[0]?.pid ?? Number.NaN;
}

/**
 * CPU seconds of a process since it began; its first field is in nanoseconds
 * (Documentation/scheduler/sched-stats).
 */
const cpuOf = (pid: number) => Number(readFileSync(`/proc/${pid}/schedstat`, 'latin1').split(' ')[0]) / 1e9;
