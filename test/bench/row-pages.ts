import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { enrol } from '../../agent/link/enrol.ts';
import { runLink } from '../../agent/link/run-link.ts';
import { BROWSING } from '../../agent/postgres/sessions.ts';
import { pollUntil } from '../../agent/process/loops.ts';
import { Api } from '../support/api.ts';
import { connect } from '../support/database.ts';
import { freePort } from '../support/free-port.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';
import { throughput } from '../support/throughput.ts';
import { startLinkGateway } from '../support/worker/link-gateway.ts';
import { type Frame, flameOf, perfHindrance, type Sampled } from './flames.ts';
import { processorMs } from './processor-time.ts';
import type { Goal, Report } from './report.ts';
import { addSample, median, runInterleaved, type Samples, type Series, timed } from './rounds.ts';
import { serverVersions } from './xfs-stack.ts';

const ROUNDS = 9;
/** A sample is the median of this many sequential pages. */
const PAGES = 15;
/** A profile is the mean of this many: the kernel counts the time of a process that runs only now and then. */
const PROFILED = 60;
/** Requests of a flame. */
const RECORDED = 200;
const ROWS = 100_000;
const PAGE = 50;
const PAGE_LIMIT = 3;
const PAGE_OF_PROJECT_LIMIT = 1.5;
const END_KEPT = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '${BROWSING}'`;

const CLIENTS = 16;
const MILLISECONDS = 700;
const LINK_LIMIT = 0.6;

const METHOD = `A page of ${PAGE} rows of eight columns, by the primary key, from the beginning of a table of \
${ROWS.toLocaleString('en')} rows in the page cache; interleaved in ${ROUNDS} rounds, a sample is the median of \
${PAGES} sequential pages. Ours: \`GET …/rows\` on the whole stack, warm, until the client has its JSON as text; for "first page" the \
session of the page before is ended first. \
\`pg\`: the same rows, each value as text, over TLS by a connected client; then by one that connects for each page \
over the host's unix socket, without TLS or password, as the agent does. The rest is the gateway alone: \`GET \
/api/v1/me\` queries neither D1 nor a host, a project queries D1. The link: calls per second from one gateway in \
workerd to this process for ${CLIENTS} clients that never wait, and for one; each call returns an empty result, over \
the link or by \`fetch\` from a plain HTTP server of Node. The profile: ${PROFILED} further requests in a row and \
round, of which it is the mean. The operation on the host is measured by the agent, from the parsed call to the result; the gateway, the link and the client are what \
is left until the response. The processor times of the processes and all their threads are the kernel's. The flames are in a stack of \
their own, ${RECORDED} requests for each process: workerd and the agent by the profiler of V8, PostgreSQL by \`perf\`. Their widths are milliseconds of one \
request, and what no sample covers is the runtime beneath the JavaScript: sockets, SQLite, the threads of V8.`;

const FINDINGS = `The first goal is out of reach behind a gateway: its work before it calls a host (the token, the count, project and \
branch from D1) is "a project", and that alone exceeds the limit. On the host the backend of a first page takes 12 ms of \
processor time where that of \`pg\` takes 0.3: 2 for the login, 7 for the catalog's description of the table, 2.4 for \
the page, which the server measures and truncates. That is the first page: its \
session has no caches, and the statement is planned again. Within 8 s, a page uses the session of the page before \
([table browser](../decisions/table-browser.md#kept-sessions)): no login, and half of the catalog's time. Since that was measured, the description leaves out the operators of keys, \
which most pages do not need, and the agent finds the keys in the list of indexes: 10.3 to 7.6 ms of processor time in a new \
session, 4.7 to 3.2 in one that waits (3.9 with the operators, by a statement of their own), at a load of ten. A session that has \
described the table before only compares the transactions that wrote its catalog rows: 2.4 to 1.1 ms; and cells that need no cut \
are converted once: 2.2 to 1.2.

Where the milliseconds of a page and of a project go is in their profiles and in the flame graphs. A project is the gateway alone: workerd, which checks the token, reads D1 and \
writes the response, has most of its processor time, and 81 % of it is in workerd itself, not in JavaScript. A page adds the call of the host and the rows: workerd makes the call, checks the reply and \
writes 400 cells of JSON; the agent checks the call and the reply too; and PostgreSQL confirms that the table is the same, plans the page and runs it. What the profile of a project has of \
the agent and of PostgreSQL is their own work at the same time. The call of the host sets out while D1 is read, and a page of a table that its session knows waits for PostgreSQL once.`;

/** @param signal aborts it */
export async function measureRowPages(signal: AbortSignal): Promise<Report> {
  const { pages, profiles, versions } = await measurePages(signal);
  const calls = await measureLink(signal);
  const flames = await recordFlames(signal);
  const hindrance = perfHindrance();
  return {
    title: 'A page of rows',
    method: METHOD,
    setting: { ...versions, ...(hindrance && { 'no flames of PostgreSQL': hindrance }) },
    goals: [
      quotient(pages, 'page', 'pg, connected', { limit: PAGE_LIMIT }),
      quotient(pages, 'page', 'a project', { limit: PAGE_OF_PROJECT_LIMIT }),
      quotient(pages, 'page', 'first page', { limit: null }),
      quotient(pages, 'first page', 'pg, connecting', { limit: null }),
      quotient(pages, 'a project', 'pg, connected', { limit: null }),
      quotient(calls, 'link', 'HTTP', { limit: LINK_LIMIT, atLeast: true }),
      quotient(calls, 'link, one client', 'HTTP, one client', { limit: null, atLeast: true }),
    ],
    findings: FINDINGS,
    times: {
      Sequential: pages,
      'Profile of a page': profiles.page,
      'Profile of a project': profiles['a project'],
    },
    counts: { 'Calls a second': calls },
    flames,
  };
}

const quotient = <Case extends string>(
  samples: Samples<Case>,
  one: Case,
  other: Case,
  bound: Pick<Goal, 'limit' | 'atLeast'>,
): Goal => ({
  name: `${one} ÷ ${other}`,
  measured: median(samples[one]) / median(samples[other]),
  ...bound,
  unit: '×',
});

async function measurePages(signal: AbortSignal) {
  const metricsPort = await freePort();
  const env = { ...UNLIMITED, METRICS_PORT: String(metricsPort) };
  const stack = await startStack({ env, restarts: false });
  try {
    const { path, direct_url, database } = await makeTable(stack);
    const reading = await reader(stack);
    const get = (target: string, prepare?: () => Promise<unknown>) =>
      sample(signal, reading(target), prepare);
    const client = await connect(direct_url);
    const platform = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate', 'branchgate');
    const rows = rowsOf(path);
    const profiles: Record<'page' | 'a project', Series> = { page: {}, 'a project': {} };
    const profiled = async (name: keyof typeof profiles, target: string) => {
      const read = reading(target);
      await read();
      return profile(profiles[name], stack, `http://127.0.0.1:${metricsPort}/metrics`, read);
    };
    try {
      const cases = {
        page: get(rows),
        'first page': get(rows, () => platform.query(END_KEPT)),
        'pg, connected': sample(signal, () => client.query(SAME_ROWS)),
        'pg, connecting': sample(signal, async () => {
          const fresh = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate', database);
          await fresh.query(SAME_ROWS);
          await fresh.end();
        }),
        'a project': get(path),
        me: get('/api/v1/me'),
      };
      const pages = await runInterleaved(ROUNDS, cases);
      await runInterleaved(
        ROUNDS,
        { page: (name) => profiled(name, rows), 'a project': (name) => profiled(name, path) },
        ...Object.values(profiles),
      );
      return { pages, profiles, versions: await serverVersions(stack) };
    } finally {
      await Promise.all([client.end(), platform.end()]);
    }
  } finally {
    await stack.stop();
  }
}

const rowsOf = (path: string) => `${path}/branches/main/tables/item/rows?limit=${PAGE}`;

/** @returns makes a function that sends a request, and waits for the text of the response */
async function reader({ url, token: issue }: Stack) {
  const authorization = `Bearer ${await issue()}`;
  return (target: string) => async () => {
    const response = await fetch(url + target, { headers: { authorization } });
    if (response.status !== 200) throw new Error(`${target}: ${response.status}`);
    await response.text();
  };
}

/** @param prepare is not measured */
const sample =
  (signal: AbortSignal, page: () => Promise<unknown>, prepare?: () => Promise<unknown>) => async () => {
    const times: number[] = [];
    for (let n = 0; n < PAGES; n++) {
      signal.throwIfAborted();
      await prepare?.();
      times.push(await timed(page));
    }
    return median(times);
  };

/** Adds a sample for each part of the requests. @returns the milliseconds of one */
async function profile(
  series: Series,
  { state: { pids } }: Stack,
  metrics: string,
  read: () => Promise<void>,
): Promise<number> {
  const processes = { workerd: pids.gateway, 'the agent': pids.agent, PostgreSQL: pids.postgres };
  const look = async () => ({
    operations: await operationMs(metrics),
    processor: Object.entries(processes).map(([name, pid]) => [name, processorMs(pid ?? 0)] as const),
    client: process.cpuUsage(),
  });
  const before = await look();
  const ms = await timed(async () => {
    for (let n = 0; n < PROFILED; n++) await read();
  });
  const after = await look();
  const add = (name: string, of: number) => addSample(series, name, of / PROFILED);
  const onHost = after.operations - before.operations;
  add('until the response', ms);
  add('gateway, link and client', ms - onHost);
  add('operation on the host', onHost);
  for (const [at, [name, spent]] of after.processor.entries())
    add(`processor time of ${name}`, spent - (before.processor[at]?.[1] ?? 0));
  const { user, system } = process.cpuUsage(before.client);
  add('processor time of the client', (user + system) / 1000);
  return ms / PROFILED;
}

/** The flames of the processes for each request, in a stack of their own: what makes them possible costs time. */
async function recordFlames(signal: AbortSignal): Promise<Record<string, Frame[]>> {
  const ports = { gateway: await freePort(), agent: await freePort() };
  const env = {
    ...UNLIMITED,
    GATEWAY_INSPECTOR_PORT: String(ports.gateway),
    NODE_OPTIONS: `--inspect-port=${ports.agent}`,
  };
  const stack = await startStack({ env, restarts: false });
  try {
    const { gateway = 0, agent = 0, postgres = 0 } = stack.state.pids as Partial<Record<string, number>>;
    // Node opens its inspector at this signal.
    process.kill(agent, 'SIGUSR1');
    const answers = () =>
      fetch(`http://127.0.0.1:${ports.agent}/json`).then(
        ({ ok }) => ok,
        () => false,
      );
    await pollUntil(answers, { within: 10_000, every: 50 });
    const processes: Record<string, Sampled> = {
      workerd: { pid: gateway, inspector: ports.gateway },
      'the agent': { pid: agent, inspector: ports.agent },
      PostgreSQL: { pid: postgres },
    };
    const { path } = await makeTable(stack);
    const reading = await reader(stack);
    const flames: Record<string, Frame[]> = {};
    for (const [caption, target] of Object.entries({ 'A page': rowsOf(path), 'A project': path })) {
      const read = reading(target);
      const work = async () => {
        for (let n = 0; n < RECORDED; n++) {
          signal.throwIfAborted();
          await read();
        }
      };
      await work();
      const before = Object.values(processes).map(({ pid }) => processorMs(pid));
      await work();
      const after = Object.values(processes).map(({ pid }) => processorMs(pid));
      const found: Frame[] = [];
      for (const [at, [name, sampled]] of Object.entries(processes).entries()) {
        const ms = ((after[at] ?? 0) - (before[at] ?? 0)) / RECORDED;
        const flame = await flameOf(name, sampled, { count: RECORDED, ms, work });
        if (flame) found.push(flame);
      }
      flames[caption] = found;
    }
    return flames;
  } finally {
    await stack.stop();
  }
}

/** Milliseconds that the agent has needed for pages of rows. */
async function operationMs(metrics: string): Promise<number> {
  const text = await (await fetch(metrics)).text();
  const sum = /^branchgate_operation_duration_seconds_sum\{operation="row\.list",outcome="ok"\} (\S+)$/m;
  return Number(sum.exec(text)?.[1] ?? 0) * 1000;
}

const COLUMNS = ['id', 'title', 'price', 'amount', 'is_open', 'details', 'made', 'note'];
const SAME_ROWS = `SELECT ${COLUMNS.map((name) => `${name}::text`)} FROM item AS i ORDER BY i.id LIMIT ${PAGE + 1}`;

async function makeTable(stack: Stack) {
  const api = new Api(stack.url, await stack.token());
  const project = await api.project('Rows');
  await api.allow(project.id);
  const { direct_url, database } = await api.credentials(project.id, 'main');
  const owner = await connect(direct_url);
  try {
    await owner.query(`CREATE TABLE item (id bigint PRIMARY KEY, title text NOT NULL, price numeric(10, 2),
      amount integer, is_open boolean, details jsonb, made timestamptz NOT NULL, note text)`);
    await owner.query(`INSERT INTO item SELECT n, 'item ' || n, n % 1000, n % 7, n % 2 = 0, jsonb_build_object('size', n),
      timestamptz '2026-01-01' + n * interval '1 second', repeat('note ', 20) FROM generate_series(1, ${ROWS}) AS n`);
    await owner.query('VACUUM ANALYZE item');
  } finally {
    await owner.end();
  }
  return { path: `/api/v1/projects/${project.id}`, direct_url, database };
}

/** Measures calls per second with an empty result, over the link and over plain HTTP. */
async function measureLink(signal: AbortSignal) {
  const stateDir = await mkdtemp(join(tmpdir(), 'branchgate-link-'));
  const leaving = new AbortController();
  const gateway = await startLinkGateway({ stateDir });
  const server = createServer((request, response) => {
    let text = '';
    request.setEncoding('utf8').on('data', (chunk: string) => {
      text += chunk;
    });
    request.on('end', async () => response.end(JSON.stringify(await handle(JSON.parse(text).method))));
  }).listen(0, '127.0.0.1');
  try {
    await once(server, 'listening');
    const { host_id, enrolment_token } = await gateway.registerHost('a');
    const identity = await enrol({
      gatewayUrl: gateway.url,
      stateDir: join(stateDir, 'agent'),
      token: enrolment_token,
    });
    const linked = Promise.withResolvers<void>();
    runLink({
      gatewayUrl: gateway.url,
      identity,
      signal: leaving.signal,
      log: () => {},
      onLinked: () => linked.resolve(),
      handle,
    });
    await linked.promise;
    // The first reconciliation makes calls too.
    await sleep(1_000);
    const url = await gateway.directUrl();
    const callsOf = (path: string, clients: number) => () => {
      signal.throwIfAborted();
      return throughput({ url: url + path, clients, milliseconds: MILLISECONDS });
    };
    const link = `/calls/link/${host_id}`;
    const http = `/calls/http/${(server.address() as AddressInfo).port}`;
    return await runInterleaved(ROUNDS, {
      link: callsOf(link, CLIENTS),
      HTTP: callsOf(http, CLIENTS),
      'link, one client': callsOf(link, 1),
      'HTTP, one client': callsOf(http, 1),
    });
  } finally {
    leaving.abort();
    await gateway.stop();
    server.closeAllConnections();
    server.close();
    await rm(stateDir, { recursive: true });
  }
}

/** The host's reply to a call. */
const handle = async (method: string) =>
  method === 'table.list'
    ? { tables: [], has_more: false }
    : { system_identifier: '1', free_bytes: 0, branches: [], projects: [], snapshots: [] };
