import { setTimeout as sleep } from 'node:timers/promises';
import { Api } from '../support/api.ts';
import { Load } from '../support/load.ts';
import { percentile } from '../support/percentile.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import type { Stack } from '../support/stack/stack.ts';
import { connectToClone, makeBareClone } from './bare-clone.ts';
import { filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { addSample, median, runInterleaved, type Series } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 8 * 2 ** 30;
const ROUNDS = 9;
const CLONED_MB = 500;
const NEIGHBOUR_MB = 100;
const CLIENTS = 4;
/** How long a client pauses between two transactions, on average. */
const PAUSE_MS = 10;
const CLONES_A_ROUND = 4;
const IDLE_MS = 1_500;
/** Pause between a drop, which also makes a checkpoint, and the next window. */
const SETTLE_MS = 300;
/** Time in which all processes of the server reload their configuration. */
const RELOAD_MS = 100;

const METHOD = `Two projects of one host, on XFS with reflink: one whose main of about ${CLONED_MB} MB is branched, and a neighbour \
with ${NEIGHBOUR_MB} MB. In both, ${CLIENTS} clients write through the pooler, four statements in a transaction, and \
pause ${PAUSE_MS} ms on average before the next. Measured is the 99th percentile of the neighbour's transaction times, \
interleaved in ${ROUNDS} rounds: those that end while one of ${CLONES_A_ROUND} branches is being created, from the \
request to the 201, and those of ${IDLE_MS / 1000} s without a creation. Medians over the rounds are compared. A \
client that is delayed makes fewer transactions meanwhile, which favours the clone; the clients, the gateway and both \
servers share the machine's processors, which does not. Branches are dropped outside of the windows. To find the \
cause, the same is measured for parts of a branch: the \`CREATE DATABASE\` alone, of a third, idle main of \
${CLONED_MB} MB; a \`CHECKPOINT\`; and a reload of PostgreSQL's configuration.`;

/** Measures how the clients of one project are affected by another's branches. @param signal aborts it */
export const measureNeighbour = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure);

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const cloned = await filledMain(api, 'Cloned', CLONED_MB);
  const neighbour = await filledMain(api, 'Neighbour', NEIGHBOUR_MB);
  const still = await filledMain(api, 'Still', CLONED_MB);
  const postgres = await connectToClone(stack);
  const loads = {
    cloned: await Load.start(cloned.main.database_url, CLIENTS, PAUSE_MS),
    neighbour: await Load.start(neighbour.main.database_url, CLIENTS, PAUSE_MS),
  };
  try {
    const began = performance.now();
    const medians: Series = {};
    const durations: Series = {};
    const summarize = (name: string, times: number[]) => {
      addSample(medians, name, median(times));
      return percentile(times, 0.99);
    };
    /** The neighbour's 99th percentile while `action` runs repeatedly; `undo` runs outside of the windows. */
    const during =
      (action: () => Promise<unknown>, undo: () => Promise<unknown> = async () => {}) =>
      async (name: string) => {
        const times: number[] = [];
        for (let n = 0; n < CLONES_A_ROUND; n++) {
          const start = performance.now();
          await action();
          const end = performance.now();
          times.push(...loads.neighbour.since(start, end).times);
          addSample(durations, name, end - start);
          await undo();
          await sleep(SETTLE_MS);
        }
        return summarize(name, times);
      };
    let branchId = '';
    const cases = {
      idle: async (name: string) => {
        const start = performance.now();
        await sleep(IDLE_MS);
        return summarize(name, loads.neighbour.since(start).times);
      },
      'during a clone': during(
        async () => {
          branchId = (await api.branch(cloned.project.id, 'round')).id;
        },
        () => purgeBranch(api, cloned.project.id, branchId),
      ),
      'during a bare clone': during(
        () => makeBareClone(postgres, still.main.database, 'bare'),
        () => postgres.query('drop database bare'),
      ),
      'during a checkpoint': during(() => postgres.query('checkpoint')),
      'after a reload': during(async () => {
        await postgres.query('select pg_reload_conf()');
        await sleep(RELOAD_MS);
      }),
    };
    const p99 = await runInterleaved(ROUNDS, cases, medians, durations);
    const { transactions, failures } = loads.neighbour.since(began);
    return {
      title: 'A neighbouring project during clones',
      method: METHOD,
      setting: { ...(await serverVersions(stack)), "neighbour's transactions": String(transactions) },
      goals: [
        {
          name: "neighbour's p99 during a clone ÷ idle",
          measured: median(p99['during a clone']) / median(p99.idle),
          limit: 2.5,
          unit: '×',
        },
        {
          name: "neighbour's failed transactions",
          measured: failures.length,
          limit: 0,
          unit: 'transactions',
        },
      ],
      times: {
        "99th percentile of a round, neighbour's transactions": p99,
        "Median of a round, neighbour's transactions": medians,
        Duration: durations,
      },
    };
  } finally {
    await Promise.all(Object.values(loads).map((load) => load.stop()));
    await postgres.end();
  }
}
