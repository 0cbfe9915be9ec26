import { setMaxListeners } from 'node:events';
import { eventually } from '../support/eventually.ts';
import { violations } from '../support/records/invariants.ts';
import { takeSnapshot } from '../support/snapshot.ts';
import type { Stack } from '../support/stack/stack.ts';
import { sourcesOf } from '../support/stack/stack-sources.ts';
import { CallLog, type Span } from './load/call-log.ts';
import { pause } from './load/client.ts';
import { API_CLIENTS, Crowd, POOLED_CLIENTS, PROJECTS } from './load/crowd.ts';
import { type MemorySamples, SAMPLE_EVERY_MS, watchMemory } from './load/memory.ts';
import type { Goal, Report } from './report.ts';
import { median } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 20 * 2 ** 30;
const MINUTE_MS = 60_000;
const SAMPLES_A_MINUTE = MINUTE_MS / SAMPLE_EVERY_MS;
const CONVERGED_WITHIN_S = 30;
const MEMORY_LIMIT = 1.1;

const METHOD = `The whole service, with PostgreSQL's data on XFS with reflink and the default limits, for the duration in the title \
after a minute of warm-up. ${POOLED_CLIENTS} clients keep a connection to the pooler, which is its maximum, and run a \
transaction of four statements on their project's main about every second. ${API_CLIENTS} users of the API read \
(projects, branches, jobs, rules, metrics, audit events, tables, rows) or write (cells, rules, names) about every \
second; 28 of them are in one project and do not pause, which exceeds its limits, and a client that receives \
\`Retry-After\` waits for that time. In each of the ${PROJECTS} projects one client creates branches of main without a \
pause, checks in each that ledger and balances agree, and deletes the oldest of three. Every response is validated \
against the OpenAPI document. Errors are all refusals other than RATE_LIMITED, BRANCH_LIMIT_REACHED, SOURCE_BUSY and \
the 503 to a ninth row operation on one branch ([table browser](../decisions/table-browser.md)), missing \
or undocumented responses, failed jobs, and inconsistent branches. A direct login that took two seconds while rules \
changed is ended and retried ([access](../decisions/access.md)), which is counted but is no error. \
At the end everything is deleted, and the remaining records and the host have to agree. Memory is read every \
${SAMPLE_EVERY_MS / 1000} s as proportional set size (PSS), and the medians of the first and the last minute after the \
warm-up are compared. PostgreSQL's is the private memory of its processes: it depends on the current number of \
sessions and has no limit. Durations have no limit either, because the clients are one process on the same machine.`;

/**
 * Runs clients of every kind concurrently, and measures their errors and the growth of memory.
 * @param signal aborts it
 * @param minutes duration after the warm-up
 */
export const measureLoad = (signal: AbortSignal, minutes: number): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, (stack) => measure(stack, signal, minutes));

async function measure(stack: Stack, signal: AbortSignal, minutes: number): Promise<Report> {
  const log = new CallLog();
  const end = new AbortController();
  const ending = AbortSignal.any([signal, end.signal]);
  // Each pausing client adds a listener.
  setMaxListeners(0, signal, ending);
  const crowd = await Crowd.start(stack, log);
  const setting = await serverVersions(stack);
  const started = performance.now() + MINUTE_MS;
  const working = Promise.all([watchMemory(stack, ending), crowd.run(ending)]);
  await Promise.race([pause((1 + minutes) * MINUTE_MS, ending), working]).finally(() => end.abort());
  const [memory] = await working;
  await crowd.stop(signal);
  signal.throwIfAborted();
  const left = await leftOver(stack);

  const spans = Array.from({ length: minutes }, (_, minute): Span => {
    const from = started + minute * MINUTE_MS;
    return [from, from + MINUTE_MS];
  });
  const transactions = (span: Span) => crowd.loads.map((load) => load.since(...span));
  const failures = crowd.loads.flatMap((load) => load.since(0).failures);
  const branches = sum(spans.map((span) => log.times('branch', span).length));
  const trouble = [...log.examples, ...new Set(failures), ...left];
  return {
    title: `Load for ${minutes} ${minutes === 1 ? 'minute' : 'minutes'}`,
    method: METHOD,
    setting,
    goals: [
      { name: 'errors other than documented limits', measured: log.errors, limit: 0, unit: 'requests' },
      { name: 'failed transactions', measured: failures.length, limit: 0, unit: 'transactions' },
      { name: 'left after deleting everything', measured: left.length, limit: 0, unit: 'items' },
      ...memoryGoals(memory, minutes),
    ],
    findings: [loginMemory(memory, minutes, branches), ...trouble.map((text) => `- ${text}`)].join('\n\n'),
    times: {
      'Minute by minute': {
        'transaction, slowest': spans.map((span) => most(transactions(span).map(({ worstMs }) => worstMs))),
        'read, median': spans.map((span) => median(log.times('read', span))),
        'read, slowest': spans.map((span) => most(log.times('read', span))),
        'write, median': spans.map((span) => median(log.times('write', span))),
        'write, slowest': spans.map((span) => most(log.times('write', span))),
        'branch, median': spans.map((span) => median(log.times('branch', span))),
        'branch, slowest': spans.map((span) => most(log.times('branch', span))),
      },
    },
    counts: {
      'Each minute': {
        transactions: spans.map((span) => sum(transactions(span).map((report) => report.transactions))),
        'branches made': spans.map((span) => log.times('branch', span).length),
        ...log.countsIn(spans),
      },
    },
    timeSeries: { 'Memory since the start of the warm-up, MB': memory },
  };
}

const sum = (values: number[]) => values.reduce((total, value) => total + value, 0);
const most = (values: number[]) => values.reduce((a, b) => Math.max(a, b), 0);

/** @returns the disagreements of records and host, and the projects left, once the service has converged */
async function leftOver(stack: Stack): Promise<string[]> {
  let found: string[] = [];
  const check = async () => {
    const picture = await takeSnapshot(sourcesOf(stack));
    found = [
      ...violations(picture),
      ...picture.records.projects.map(({ id }) => `project ${id} is still there`),
    ];
    if (found.length > 0) throw new Error('not converged');
  };
  await eventually(check, CONVERGED_WITHIN_S).catch(() => {});
  return found;
}

/** MB of each sample, and the permitted growth as a ratio. */
const SAMPLES: Record<string, { limit: number | null; of: (memory: MemorySamples) => number[] }> = {
  'gateway (workerd)': { limit: MEMORY_LIMIT, of: (memory) => memory['gateway (workerd)'] },
  agent: { limit: MEMORY_LIMIT, of: ({ agent }) => agent },
  PgBouncer: { limit: MEMORY_LIMIT, of: ({ PgBouncer }) => PgBouncer },
  'PgBouncer without logins': {
    limit: MEMORY_LIMIT,
    of: ({ PgBouncer, 'PgBouncer, logins': ofLogins }) =>
      PgBouncer.map((all, sample) => all - (ofLogins[sample] ?? 0)),
  },
  'PostgreSQL, private': { limit: null, of: (memory) => memory['PostgreSQL, private'] },
};

/**
 * @returns the medians of the first and last minute after the warm-up, or of the halves of a single minute
 */
function compared(values: number[], minutes: number): [first: number, last: number] {
  const samples = values.slice(SAMPLES_A_MINUTE);
  const each = minutes === 1 ? SAMPLES_A_MINUTE / 2 : SAMPLES_A_MINUTE;
  return [median(samples.slice(0, each)), median(samples.slice(-each))];
}

const memoryGoals = (memory: MemorySamples, minutes: number): Goal[] =>
  Object.entries(SAMPLES).map(([name, { limit, of }]) => {
    const [first, last] = compared(of(memory), minutes);
    return { name: `memory of ${name}, last minute ÷ first`, measured: last / first, limit, unit: '×' };
  });

/** @returns why PgBouncer's memory grows */
function loginMemory(memory: MemorySamples, minutes: number, branches: number): string {
  const [first, last] = compared(memory.PgBouncer, minutes);
  const [loginsFirst, loginsLast] = compared(memory['PgBouncer, logins'], minutes);
  return `PgBouncer stores each login it has loaded until it exits, even when the login is dropped and no longer in its \
files ([reported](https://github.com/pgbouncer/pgbouncer/pull/393)): 2.3 KB each, three per branch, 7 MB for a thousand \
branches. It doubles its cache when that is full, so it grows in larger and rarer steps (\`memtotal\` of \
\`user_cache\` in \`SHOW MEM\`). In these ${minutes} minutes ${branches} branches were created. From the first to the last \
PgBouncer grew by ${(last - first).toFixed(1)} MB, ${(loginsLast - loginsFirst).toFixed(1)} MB of it for logins. Only a restart of PgBouncer frees them.`;
}
