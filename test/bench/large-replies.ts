import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Api } from '../support/api.ts';
import { targetOfUrl } from '../support/host/attempts.ts';
import { fillLedger, Load } from '../support/load.ts';
import type { Order } from '../support/neighbours/attacker-process.ts';
import { percentile } from '../support/percentile.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';
import type { Report } from './report.ts';
import { addSample, median, medianRatio, runInterleaved, type Series } from './rounds.ts';

const ROUNDS = 5;
const WINDOW_MS = 15_000;
/** All clients of the attack run by then. */
const STARTED_MS = 6_000;
const SETTLE_MS = 500;
const CLIENTS = 4;
/** How long a client pauses between two transactions, on average. */
const PAUSE_MS = 10;
const NEIGHBOUR_MB = 10;
const TIMES_IDLE = 1.2;

const METHOD = `Two tenants of one host. One has twenty clients that take replies of 10 MB by \`POST /sql\`, at the limit of what a host runs for a tenant; of the other one, \
${CLIENTS} clients write through the pooler, four statements in a transaction, and pause ${PAUSE_MS} ms on average before the next. Measured is the 99th percentile of \
these transactions, interleaved in ${ROUNDS} rounds of ${WINDOW_MS / 1000} s each with and without the other tenant; the ratios of the rounds are compared. The gateway and the twenty clients are on other machines \
in production. Here they share the processors with the host, so they run only while these are idle (\`SCHED_IDLE\`). Twenty clients take more than the pace of a tenant, so few of their replies end \
within a round, and those that wait for a turn for two seconds are refused.`;

/** The replies that the attack got, and the transactions meanwhile. */
interface Attacked {
  replies: number;
  times: number[];
}

/** Measures how one tenant's large replies over HTTP affect the transactions of another. @param signal aborts it */
export async function measureLargeReplies(signal: AbortSignal): Promise<Report> {
  const stack = await startStack({ env: { ...UNLIMITED, LIMIT_SQL_PER_MINUTE: '100000' }, restarts: false });
  try {
    const neighbour = new Api(stack.url, await stack.token());
    const { id } = await neighbour.project('Neighbour');
    await neighbour.allow(id);
    const { direct_url, database_url } = await neighbour.credentials(id, 'main');
    await fillLedger(direct_url, NEIGHBOUR_MB);
    const side = await attackerOf(stack);
    const load = await Load.start(database_url, CLIENTS, PAUSE_MS);
    await load.connected;
    const group = execFileSync('pgrep', ['-g', String(stack.state.pids.gateway)], { encoding: 'utf8' });
    for (const pid of group.trim().split('\n')) execFileSync('chrt', ['-a', '-i', '-p', '0', pid]);
    const medians: Series = {};
    const replies: Series = {};
    const summarize = (name: string, times: readonly number[]) => {
      addSample(medians, name, median(times));
      return percentile(times, 0.99);
    };
    const window = async () => {
      const start = performance.now();
      await sleep(WINDOW_MS, undefined, { signal });
      return load.since(start).times;
    };
    try {
      const p99 = await runInterleaved(
        ROUNDS,
        {
          idle: async (name) => {
            await sleep(SETTLE_MS);
            return summarize(name, await window());
          },
          'beside large replies': async (name) => {
            const found = await during(side, window);
            addSample(replies, name, found.replies);
            return summarize(name, found.times);
          },
        },
        medians,
        replies,
      );
      return {
        title: 'A neighbour beside large replies over HTTP',
        method: METHOD,
        goals: [
          {
            name: "neighbour's p99 beside 20 clients with replies of 10 MB ÷ idle",
            measured: medianRatio(p99['beside large replies'], p99.idle),
            limit: TIMES_IDLE,
            unit: '×',
          },
          {
            name: "neighbour's failed transactions",
            measured: load.since(0).failures.length,
            limit: 0,
            unit: 'transactions',
          },
        ],
        times: {
          "99th percentile of a round, neighbour's transactions": p99,
          "Median of a round, neighbour's transactions": medians,
        },
        counts: { 'Replies of 10 MB in a round': replies },
      };
    } finally {
      await load.stop();
    }
  } finally {
    await stack.stop();
  }
}

/** A tenant with as many branches as fill its limit. */
async function attackerOf(stack: Stack): Promise<Order['side']> {
  const token = await stack.token({ tenant: 'large-replies', email: 'large-replies@example.com' });
  const api = new Api(stack.url, token);
  const { id: projectId } = await api.project('Large replies');
  await api.allow(projectId);
  const branchTargets: Order['side']['branchTargets'] = [];
  for (const name of ['one', 'two', 'three']) {
    await api.branch(projectId, name);
    const path = `/api/v1/projects/${projectId}/branches/${name}`;
    await api.patch(path, { connection_attempts_per_minute: 'max' });
    const { direct_url, database_url } = await api.credentials(projectId, name, '?role=read_only');
    branchTargets.push({ direct: targetOfUrl(direct_url), pooled: targetOfUrl(database_url) });
  }
  const [targets] = branchTargets;
  if (!targets) throw new Error('the tenant has no branch');
  const durationMs = STARTED_MS + WINDOW_MS;
  return {
    targets,
    branchTargets,
    victim: targets,
    api: { url: stack.url, token, projects: [{ id: projectId, branches: [] }] },
    durationMs,
  };
}

/** @throws Error if the attack got no reply */
async function during(side: Order['side'], measure: () => Promise<number[]>): Promise<Attacked> {
  const program = join(import.meta.dirname, '../support/neighbours/attacker-process.ts');
  const child = spawn('chrt', ['-i', '0', process.execPath, program], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  try {
    const said = once(child, 'message');
    child.send({ name: 'large replies', side } satisfies Order);
    await sleep(STARTED_MS);
    const times = await measure();
    const [counts] = (await said) as [Record<string, number>];
    if (!counts.replies) throw new Error(`the attack did nothing: ${JSON.stringify(counts)}`);
    return { replies: counts.replies, times };
  } finally {
    child.kill();
  }
}
