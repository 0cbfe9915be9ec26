import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { hostFolder } from '../../dev/stack/host-folder.ts';
import { Api } from '../support/api.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { Load } from '../support/load.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import { type SeenClone, slowestClone } from '../support/stack/slowest-clone.ts';
import type { Stack } from '../support/stack/stack.ts';
import { addDurations, creationSteps } from './creation-steps.ts';
import { filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { addSample, medianDifference, medianRatio, runInterleaved, type Series } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 8 * 2 ** 30;
const ROUNDS = 15;
const MEGABYTES = 500;
const CLIENTS = 8;
/** How long clients are observed without a branch, and after each branch for those that were paused. */
const QUIET_MS = 1_000;
const AFTER_MS = 200;

const METHOD = `A main database of about ${MEGABYTES} MB on XFS with reflink, and ${CLIENTS} clients that write to it through the \
pooler without a pause, four statements in a transaction. Interleaved in ${ROUNDS} rounds: a branch of it is created, \
and ${QUIET_MS / 1000} s without one. The stall is the duration of the slowest transaction that ended between the \
request and ${AFTER_MS} ms after the branch exists. It includes the transaction's own statements, its wait for a \
server connection and the checkpoint before the clone. It is divided by the duration of the \`CREATE DATABASE\` alone, \
as another session sees it: the shortest interval that could be called clone time, before which no client can be \
admitted. The job's clone step (checkpoint, waiting for transactions to end, \`CREATE DATABASE\`) and the whole call \
are also shown. *Before the clone*: from the pooler's PAUSE, by its log, to the start of that statement. *After the clone*: from its \
end to the pooler's RESUME; the end is at most 5 ms too early. Clones take longer from round to round, as the source becomes more fragmented, so the limit applies to \
the median of the ratios in each round. A branch is dropped before the next is created. The clients share the machine \
with the servers.`;

const FINDINGS = `The stall is the \`CREATE DATABASE\` and a time that is independent of its duration, so the ratio falls the longer that \
statement takes. Before it, running transactions and their sessions end. After it, all clients resume at the same time, and the pooler logs in \
to PostgreSQL again for each of them, one after another, on two processors that the proof of the new branch also uses; their first statements \
find empty caches. PostgreSQL clones no database that has sessions, so none can be kept. On 2026-11-22, traced in single branches, 16 to 29 ms \
passed before the statement and 33 to 56 ms after it. Since then, what needs no pause is done before it: the host counts files and inodes, sets \
how files are copied, and opens the session that will resume the clients. Tried: \
resuming the clients as soon as PostgreSQL has found the source empty and copies, so that the first login is half done \
when the copy ends. Interleaved with the old code it made no difference (43 to 85 ms over the statement, against 46 to \
77), and was removed.`;

/** Measures how long the clients of a written database stall while it is branched. @param signal aborts it */
export const measureBusyMain = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure);

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const postgres = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate');
  const { project, main } = await filledMain(api, 'Busy', MEGABYTES);
  const load = await Load.start(main.database_url, CLIENTS);
  try {
    const clones = { 'CREATE DATABASE': [] as number[], call: [] as number[] };
    const steps: Series = {};
    const held: Series = {};
    const began = performance.now();
    const cases = {
      'worst transaction, no branch': async () => {
        const start = performance.now();
        await sleep(QUIET_MS);
        return load.since(start).worstMs;
      },
      'worst transaction, branch': async () => {
        const start = performance.now();
        let branchId = '';
        const seen = await slowestClone(postgres, async () => {
          branchId = (await api.branch(project.id, 'round')).id;
        });
        if (!seen) throw new Error('no CREATE DATABASE was seen');
        clones['CREATE DATABASE'].push(seen.ms);
        clones.call.push(performance.now() - start);
        for (const [part, ms] of Object.entries(aroundClone(stack, main.database, seen)))
          addSample(held, part, ms);
        await sleep(AFTER_MS);
        const { worstMs } = load.since(start);
        addDurations(steps, await creationSteps(api, project.id));
        await purgeBranch(api, project.id, branchId);
        return worstMs;
      },
    };
    const stalls = await runInterleaved(ROUNDS, cases, clones, steps, held);
    const { transactions, failures } = load.since(began);
    const stall = stalls['worst transaction, branch'];
    return {
      title: 'Branching a busy main',
      method: METHOD,
      setting: { ...(await serverVersions(stack)), transactions: String(transactions) },
      goals: [
        {
          name: 'worst stall ÷ CREATE DATABASE',
          measured: medianRatio(stall, clones['CREATE DATABASE']),
          limit: 1.2,
          unit: '×',
        },
        { name: 'failed transactions', measured: failures.length, limit: 0, unit: 'transactions' },
        {
          name: 'worst stall ÷ clone step',
          measured: medianRatio(stall, steps.clone ?? []),
          limit: null,
          unit: '×',
        },
        {
          name: 'worst stall ÷ whole call',
          measured: medianRatio(stall, clones.call),
          limit: null,
          unit: '×',
        },
        {
          name: 'worst stall − CREATE DATABASE',
          measured: medianDifference(stall, clones['CREATE DATABASE']),
          limit: null,
          unit: 'ms',
        },
      ],
      findings: FINDINGS,
      times: {
        'The slowest of all clients': stalls,
        'The branch': clones,
        'While clients are held, beside the CREATE DATABASE': held,
        'Steps of the call': steps,
      },
    };
  } finally {
    await load.stop();
    await postgres.end();
  }
}

/** How long the pooler held the clients of the database before and after the clone, by its log. Milliseconds. */
function aroundClone(stack: Stack, database: string, { from, ms }: SeenClone) {
  const log = readFileSync(join(hostFolder(stack.state.host_dir, {}).logs, 'pgbouncer.log'), 'utf8');
  const timesOf = (command: 'PAUSE' | 'RESUME') =>
    [...log.matchAll(new RegExp(`^(\\S+) (\\S+) UTC .* ${command} '${database}' command issued$`, 'gm'))].map(
      ([, day, time]) => Date.parse(`${day}T${time}Z`),
    );
  const paused = timesOf('PAUSE').findLast((at) => at <= from);
  const resumed = timesOf('RESUME').find((at) => at >= from);
  if (paused === undefined || resumed === undefined) throw new Error(`the pooler did not hold ${database}`);
  return { 'before the clone': from - paused, 'after the clone': resumed - from - ms };
}
