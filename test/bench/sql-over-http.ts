import { loadavg } from 'node:os';
import type pg from 'pg';
import { Api } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { startFarRelay } from '../support/far-relay.ts';
import { startStack, UNLIMITED } from '../support/stack/stack.ts';
import { openDoor, socketClient } from '../support/web-socket.ts';
import type { Report } from './report.ts';
import { median, medianRatio, runInterleaved, timed } from './rounds.ts';

const ROUNDS = 100;
/** Compared with a project's record, which takes the same calls but for the host's. */
const RECORDS_MAX = 2;
const COLD_LEAST = 2;
/** A session over WebSocket, compared with one over TCP. */
const SOCKET_LEAST = 0.8;
/** Delay of one direction between a function and the service. Milliseconds. */
const FAR_MS = 10;
const FAR_ROUNDS = 30;
const FAR_STATEMENTS = 20;
/** Statements of one client one after the other, and a reply of 20 MB. */
const STATEMENTS = 300;
const LARGE = "select repeat('x', 1000000) as text from generate_series(1, 20)";
const SOCKET_ROUNDS = 20;

const METHOD = `A local stack: gateway in workerd, agent, PostgreSQL and PgBouncer on one machine. Interleaved in ${ROUNDS} rounds, warm: a project's \
record, and \`select 1\` by \`POST /sql\` with the password of the branch. In ${FAR_ROUNDS} rounds through relays that deliver all bytes ${FAR_MS} ms \
later in each direction, without the handshake of TCP: the same request over a connection that is open; the cold start of a function that connects over TCP \
instead, which is a new connection with TLS and SCRAM to the pooler, the same statement, and its end; and ${FAR_STATEMENTS} statements one after the other in an open \
session, over TCP (node-postgres) and over WebSocket (Neon's client, as it is). In ${SOCKET_ROUNDS} rounds without relays, ${STATEMENTS} such statements and a \
reply of 20 MB in direct sessions, both with TLS.`;

const FINDINGS = `Without a distance a cold client over TCP is faster than \`/sql\`: its seven exchanges take no time there, and a request passes through \
workerd, a Durable Object and the agent. Statements without a distance are slower over WebSocket because Neon's client holds its bytes for the shortest timer of \
Node, 1 ms, to send them together (\`coalesceWrites\`). Without that a statement took 0.73 ms, and 0.25 over TCP, in a run of its own.`;

/** @param signal aborts it */
export async function measureSqlOverHttp(signal: AbortSignal): Promise<Report> {
  const stack = await startStack({ env: UNLIMITED, restarts: false });
  const far = new Map<number, Awaited<ReturnType<typeof startFarRelay>>>();
  try {
    const api = new Api(stack.url, await stack.token());
    const project = await api.project('SQL over HTTP');
    await api.branch(project.id, 'measured');
    await api.allow(project.id);
    await api.patch(`/api/v1/projects/${project.id}/branches/measured`, {
      connection_attempts_per_minute: 1000,
    });
    const { database_url, direct_url } = await api.credentials(project.id, 'measured');
    /** The same address through a relay. */
    const throughRelay = async (address: string) => {
      const url = new URL(address);
      const port = Number(url.port);
      const relay = far.get(port) ?? (await startFarRelay(port, FAR_MS));
      far.set(port, relay);
      url.port = String(relay.port);
      return url.href;
    };
    const send = async (gateway: string) => {
      const headers = { 'Neon-Connection-String': database_url };
      const body = JSON.stringify({ query: 'select 1 as one', params: [] });
      const response = await fetch(new URL('/sql', gateway), { method: 'POST', headers, body });
      if (response.status !== 200) throw new Error(await response.text());
      await response.json();
    };
    const many = async (client: Pick<pg.Client, 'query'>, statements: number) => {
      signal.throwIfAborted();
      for (let n = 0; n < statements; n += 1) await client.query('select $1::int as n', [n]);
    };
    const requests = await runInterleaved(ROUNDS, {
      'a project': () => timed(() => api.get(`/api/v1/projects/${project.id}`)),
      'POST /sql': () => timed(() => send(stack.url)),
      'a cold client over TCP': () => timed(() => query(database_url, 'select 1 as one')),
    });
    openDoor({ port: stack.state.sql_port, ca: stack.state.ca_certificate });
    const tcp = await connect(direct_url);
    const socket = await socketClient(direct_url);
    const sessions = await runInterleaved(SOCKET_ROUNDS, {
      [`${STATEMENTS} statements over TCP`]: () => timed(() => many(tcp, STATEMENTS)),
      [`${STATEMENTS} statements over WebSocket`]: () => timed(() => many(socket as never, STATEMENTS)),
      '20 MB over TCP': () => timed(() => tcp.query(LARGE)),
      '20 MB over WebSocket': () => timed(() => socket.query(LARGE)),
    });
    await Promise.all([tcp.end(), socket.end()]);

    const gateway = await throughRelay(stack.url);
    const pooler = await throughRelay(database_url);
    const door = new URL(await throughRelay(`https://127.0.0.1:${stack.state.sql_port}`));
    openDoor({ port: Number(door.port), ca: stack.state.ca_certificate });
    const farTcp = await connect(await throughRelay(direct_url));
    const farSocket = await socketClient(direct_url);
    const distant = await runInterleaved(FAR_ROUNDS, {
      'POST /sql': () => timed(() => send(gateway)),
      'a cold client over TCP': () => timed(() => query(pooler, 'select 1 as one')),
      'statements over TCP': () => timed(() => many(farTcp, FAR_STATEMENTS)),
      'statements over WebSocket': () => timed(() => many(farSocket as never, FAR_STATEMENTS)),
    });
    await Promise.all([farTcp.end(), farSocket.end()]);

    const least = (name: string, ones: readonly number[] = [], others: readonly number[] = []) => ({
      name,
      measured: medianRatio(ones, others),
      atLeast: true as const,
      unit: '×' as const,
    });
    return {
      title: 'SQL over HTTP and WebSocket',
      method: `${METHOD} The load of the machine at the end was ${loadavg()[0]?.toFixed(1)}.`,
      goals: [
        {
          name: 'POST /sql ÷ a project',
          measured: median(requests['POST /sql']) / median(requests['a project']),
          limit: RECORDS_MAX,
          unit: '×',
        },
        {
          ...least(
            `a cold client over TCP ÷ POST /sql, ${2 * FAR_MS} ms away`,
            distant['a cold client over TCP'],
            distant['POST /sql'],
          ),
          limit: COLD_LEAST,
        },
        {
          ...least(
            'a cold client over TCP ÷ POST /sql, without a distance',
            requests['a cold client over TCP'],
            requests['POST /sql'],
          ),
          limit: null,
        },
        {
          ...least(
            `throughput of statements, WebSocket ÷ TCP, ${2 * FAR_MS} ms away`,
            distant['statements over TCP'],
            distant['statements over WebSocket'],
          ),
          limit: SOCKET_LEAST,
        },
        {
          ...least(
            'throughput of statements, WebSocket ÷ TCP, without a distance',
            sessions[`${STATEMENTS} statements over TCP`],
            sessions[`${STATEMENTS} statements over WebSocket`],
          ),
          limit: null,
        },
        {
          ...least(
            'throughput of a large reply, WebSocket ÷ TCP',
            sessions['20 MB over TCP'],
            sessions['20 MB over WebSocket'],
          ),
          limit: SOCKET_LEAST,
        },
      ],
      findings: FINDINGS,
      times: {
        'One request, without a distance': requests,
        [`${2 * FAR_MS} ms away`]: distant,
        'A session, without a distance': sessions,
      },
    };
  } finally {
    for (const relay of far.values()) await relay.stop();
    await stack.stop();
  }
}
