import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { table } from '../../bench/report.ts';
import type { Measured } from './run-scale.ts';

const FILE = join(import.meta.dirname, '../../../docs/scale.md');

const HOURS_PER_MONTH = 730;
const MEASUREMENTS_PER_HOUR = 60;
const RECONCILIATIONS_PER_HOUR = 12;
/**
 * The run is too short for six rows of ten minutes and one of the hour, which are written and deleted, and the
 * head with each of the six. `measurement-store.worker.test.ts` counts them.
 */
const HISTORY_ROWS_PER_HOUR = 2 * (6 + 1) + 6;
/** The next one is set. */
const ALARMS_PER_RECONCILIATION = 1;
const D1_MAX_BYTES = 10e9;
const GIB = 2 ** 30;

/** Where the prices are from, and when they were compared with it. */
const PRICES_READ = '2026-11-23';
const PRICES_OF = {
  D1: 'https://developers.cloudflare.com/d1/platform/pricing/',
  'Durable Objects': 'https://developers.cloudflare.com/durable-objects/platform/pricing/',
  Workers: 'https://developers.cloudflare.com/workers/platform/pricing/',
};

/** Cloudflare's list prices of the paid plan in US dollars, without what the plan includes. */
const PRICES = {
  millionRowsRead: 0.001,
  /** A row of an index is one more. */
  millionRowsWritten: 1,
  gigabyteOfD1: 0.75,
  /** Calls, alarms, and messages of agents; what is sent to them is free. */
  millionObjectRequests: 0.15,
  /** Received messages of a WebSocket that are one request. */
  messagesPerRequest: 20,
  /** To set an alarm is to write a row. */
  millionObjectRowsWritten: 1,
  gigabyteOfObjects: 0.2,
  // Not in the sum.
  millionGigabyteSecondsOfObjects: 12.5,
  millionRequests: 0.3,
  millionProcessorMs: 0.02,
};

const count = (value: number): string =>
  value >= 100 || Number.isInteger(value)
    ? Math.round(value).toLocaleString('en')
    : value.toFixed(value >= 1 ? 1 : 3);
const dollars = (value: number): string => `$${value.toFixed(2)}`;

/** What all hosts use in an hour in which nobody does anything, from the measured parts. */
function anHour({ measuring, reconciling, projects, hosts }: Measured) {
  const sum = (of: (usage: Measured['measuring']['usage']) => number) =>
    of(measuring.usage) * MEASUREMENTS_PER_HOUR + of(reconciling.usage) * RECONCILIATIONS_PER_HOUR;
  const calls = (usage: Measured['measuring']['usage']) =>
    Object.values(usage.objectCalls).reduce((total, one) => total + one, 0);
  return {
    rowsRead: sum(({ rowsRead }) => rowsRead),
    rowsWritten: sum(({ rowsWritten }) => rowsWritten),
    objectCalls: sum(calls),
    messages: projects * MEASUREMENTS_PER_HOUR + hosts * RECONCILIATIONS_PER_HOUR,
    objectRows:
      (measuring.objectRows * MEASUREMENTS_PER_HOUR + HISTORY_ROWS_PER_HOUR) * projects +
      measuring.linkRows * MEASUREMENTS_PER_HOUR * hosts +
      ALARMS_PER_RECONCILIATION * hosts * RECONCILIATIONS_PER_HOUR,
  };
}

/** Writes docs/scale.md. */
export function writeScaleReport(measured: Measured): void {
  const { branches, hosts, projects, d1Bytes, linking, reconciling, measuring } = measured;
  const hour = anHour(measured);
  const perBranch = (value: number) => count(value / branches);
  const d1PerBranch = d1Bytes / branches;
  const monthly = (perHour: number, millionPrice: number) => (perHour * HOURS_PER_MONTH * millionPrice) / 1e6;
  const costs: [string, number][] = [
    ['D1, rows read', monthly(hour.rowsRead, PRICES.millionRowsRead)],
    ['D1, rows written', monthly(hour.rowsWritten, PRICES.millionRowsWritten)],
    ['D1, storage', (d1Bytes / 1e9) * PRICES.gigabyteOfD1],
    [
      'objects, calls and alarms',
      monthly(hour.objectCalls + hosts * RECONCILIATIONS_PER_HOUR, PRICES.millionObjectRequests),
    ],
    [
      'objects, messages of the links',
      monthly(hour.messages / PRICES.messagesPerRequest, PRICES.millionObjectRequests),
    ],
    ['objects, rows written', monthly(hour.objectRows, PRICES.millionObjectRowsWritten)],
    ['objects, storage', ((measuring.objectBytes * projects) / 1e9) * PRICES.gigabyteOfObjects],
  ];
  const total = costs.reduce((sum, [, cost]) => sum + cost, 0);
  const text = `# Scale

What grows with hosts, projects and branches, measured by \`npm run simulate -- --scale hosts=${hosts},branches=${branches}\`: the
gateway in workerd with the real coordinators, links and reconciliation, and ${hosts} scripted agents with the real link.

Measured with ${count(hosts)} hosts, ${count(projects)} projects and ${count(branches)} branches, ${measured.measurements}
measurements of each project. Each branch has three credentials, a job and three audit events on record; the databases exist by
name only, so PostgreSQL is no part of it. Node and workerd share one machine, so times are those of this machine.
Reconciliations and new links in a round of measurements are counted with it, and a slow machine has more of them: rows read and
written of D1, and requests of objects, are therefore upper bounds.

## What grows with what

${table(
  ['', 'grows with', 'measured'],
  [
    ['D1, size', 'branches, and audit events and jobs, which stay', `${count(d1PerBranch)} bytes per branch`],
    ['D1, rows read', 'branches, by the minute', `${perBranch(hour.rowsRead)} per branch and hour`],
    [
      'D1, rows written',
      'changes, and two per host and reconciliation',
      `${perBranch(hour.rowsWritten)} per branch and hour`,
    ],
    ['Durable Objects', 'projects, hosts, and clients with an open window', `${count(projects + hosts)}`],
    [
      'object requests',
      'projects, by the minute',
      `${count(hour.objectCalls / projects)} per project and hour`,
    ],
    [
      'rows written in objects of projects',
      'projects, by ten minutes',
      `${HISTORY_ROWS_PER_HOUR} per project and hour, and ${count(measuring.objectRows)} per measurement`,
    ],
    [
      'rows written in links',
      'hosts, by the minute; projects, where their heads need more rows',
      `${count(measuring.linkRows)} per host and measurement`,
    ],
    [
      'storage of an object',
      'branches of the project, at most a year of history',
      `${count(measuring.objectBytes / 1024)} KiB after the run`,
    ],
    [
      'alarms',
      'hosts, every five minutes; projects, at the next end of a life, a lease or a rule',
      `${count(hosts * RECONCILIATIONS_PER_HOUR)} an hour for hosts`,
    ],
    [
      'reconciliation without a difference, over the link',
      'projects of the host, at most 256 groups',
      `${count(reconciling.bytes / hosts)} bytes per host`,
    ],
    [
      'reconciliation, rows of D1',
      'branches of the host',
      `${count(reconciling.usage.rowsRead / branches)} read per branch`,
    ],
    [
      'measurement, over the link',
      'branches',
      `${count(measuring.bytes / branches)} bytes per branch and minute`,
    ],
  ],
)}

## All hosts together after an outage

${table(
  ['', 'measured'],
  [
    ['until all hosts are linked', `${count(linking.seconds)} s`],
    ['until all hosts are reconciled', `${count(linking.reconciledSeconds)} s`],
    ['over the links', `${count(linking.bytes / 1024)} KiB`],
    ['D1, queries', count(linking.usage.queries)],
    ['D1, rows read', count(linking.usage.rowsRead)],
    ['D1, rows written', count(linking.usage.rowsWritten)],
  ],
)}

## What it costs

Per month at Cloudflare's list prices, without what the plan includes:

${table(
  ['', 'per month'],
  [
    ...costs.map(([name, cost]) => [name, dollars(cost)]),
    ['together', dollars(total)],
    ['per branch', `$${(total / branches).toFixed(4)}`],
  ],
)}

The history of a project has a row for ten minutes and one per hour (\`edge/monitoring/metric-history.ts\`), which are written and
later deleted, and with each of them the last measurement is stored. A deletion is charged like a row that is written; the run is
too short for these rows, so they are added. The minutes in between are kept by the link of the host, for all of its projects in the
same rows (\`edge/host-link/measurement-heads.ts\`): the hosts of this run write each measurement within a second or two.

The sum leaves out what depends on clients or cannot be measured here: the duration of objects, which are charged while they
work or cannot hibernate ($${PRICES.millionGigabyteSecondsOfObjects.toFixed(2)} per million GB-s, at 128 MB each), requests of clients ($${PRICES.millionRequests.toFixed(2)} per million) and the processor time of
the Worker ($${PRICES.millionProcessorMs.toFixed(2)} per million ms). All prices were compared on ${PRICES_READ} with stored copies of Cloudflare's pages about
${Object.entries(PRICES_OF)
  .map(([name, page]) => `[${name}](${page})`)
  .join(', ')
  .replace(/, (?=[^,]*$)/, ' and ')}.

## Where one D1 is too small

A D1 holds ${count(D1_MAX_BYTES / 1e9)} GB and has one writer. By the size above, that is ${count(D1_MAX_BYTES / d1PerBranch)} branches without further history;
audit events, jobs and records of deleted branches are the part that grows while branches come and go: 5,550 bytes, 2.9 jobs, 3.9 audit events and a
branch for each creation and deletion, so 1.9 million of them fill a D1. [Two settings](operating.md#what-d1-keeps) bound it. Lists and quotas read only
branches that are not deleted, by an index of their own. ${count(d1Bytes / GIB)} GiB were used here.

Tenants are then spread over several gateways, each with its own D1, objects and hosts. No record refers to another tenant's, and a
host has projects of one gateway, so nothing has to be divided but the tenants themselves: the address of a gateway is part of its
users' identities ([operating.md](operating.md)), so a tenant stays where it was created.
`;
  writeFileSync(FILE, text);
}
