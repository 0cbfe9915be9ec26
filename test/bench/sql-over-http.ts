import { loadavg } from 'node:os';
import { Api } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { startStack, UNLIMITED } from '../support/stack/stack.ts';
import { openDoor, socketClient } from '../support/web-socket.ts';
import type { Report } from './report.ts';
import { median, medianRatio, runInterleaved, timed } from './rounds.ts';

const ROUNDS = 100;
/** Compared with a project's record, which takes the same calls but for the host's. */
const RECORDS_MAX = 2;
const COLD_LEAST = 2;
/** Throughput of a session over WebSocket, compared with one over TCP. */
const SOCKET_LEAST = 0.8;
/** Statements of one client one after the other, and a reply of 20 MB. */
const STATEMENTS = 300;
const LARGE = "select repeat('x', 1000000) as text from generate_series(1, 20)";
const SOCKET_ROUNDS = 20;

const METHOD = `A local stack: gateway in workerd, agent, PostgreSQL and PgBouncer on one machine. Interleaved in ${ROUNDS} rounds, warm: a project's \
record, \`select 1\` by \`POST /sql\` with the password of the branch, and the cold start of a function that connects over TCP instead, which is a new connection with \
TLS and SCRAM to the pooler, the same statement, and its end. Then, in ${SOCKET_ROUNDS} rounds, ${STATEMENTS} statements one after the other and a reply of 20 MB, each in a direct session \
over TCP (node-postgres) and over WebSocket (Neon's client), both with TLS.`;

/** @param signal aborts it */
export async function measureSqlOverHttp(signal: AbortSignal): Promise<Report> {
  const stack = await startStack({ env: UNLIMITED, restarts: false });
  try {
    const api = new Api(stack.url, await stack.token());
    const project = await api.project('SQL over HTTP');
    await api.branch(project.id, 'measured');
    await api.allow(project.id);
    await api.patch(`/api/v1/projects/${project.id}/branches/measured`, {
      connection_attempts_per_minute: 1000,
    });
    const { database_url: url } = await api.credentials(project.id, 'measured');
    const send = async () => {
      const headers = { 'Neon-Connection-String': url };
      const body = JSON.stringify({ query: 'select 1 as one', params: [] });
      const response = await fetch(`${stack.url}/sql`, { method: 'POST', headers, body });
      if (response.status !== 200) throw new Error(await response.text());
      await response.json();
    };
    const times = await runInterleaved(ROUNDS, {
      'a project': () => {
        signal.throwIfAborted();
        return timed(() => api.get(`/api/v1/projects/${project.id}`));
      },
      'POST /sql': () => timed(send),
      'a cold client over TCP': () => timed(() => query(url, 'select 1 as one')),
    });
    const { direct_url } = await api.credentials(project.id, 'measured');
    openDoor({ port: stack.state.sql_port, ca: stack.state.ca_certificate });
    const tcp = await connect(direct_url);
    const socket = await socketClient(direct_url);
    const many = async (client: Pick<typeof tcp, 'query'>) => {
      signal.throwIfAborted();
      for (let n = 0; n < STATEMENTS; n += 1) await client.query('select $1::int as n', [n]);
    };
    const sessions: Record<string, number[]> = await runInterleaved(SOCKET_ROUNDS, {
      [`${STATEMENTS} statements over TCP`]: () => timed(() => many(tcp)),
      [`${STATEMENTS} statements over WebSocket`]: () => timed(() => many(socket as never)),
      '20 MB over TCP': () => timed(() => tcp.query(LARGE)),
      '20 MB over WebSocket': () => timed(() => socket.query(LARGE)),
    });
    await Promise.all([tcp.end(), socket.end()]);
    const throughput = (what: string) =>
      medianRatio(sessions[`${what} over TCP`] ?? [], sessions[`${what} over WebSocket`] ?? []);
    return {
      title: 'SQL over HTTP and WebSocket',
      method: `${METHOD} The load of the machine at the end was ${loadavg()[0]?.toFixed(1)}.`,
      goals: [
        {
          name: 'POST /sql, compared with a project',
          measured: median(times['POST /sql']) / median(times['a project']),
          limit: RECORDS_MAX,
          unit: '×',
        },
        {
          name: 'a cold client over TCP, compared with POST /sql',
          measured: medianRatio(times['a cold client over TCP'], times['POST /sql']),
          limit: COLD_LEAST,
          atLeast: true,
          unit: '×',
        },
        {
          name: 'statements over WebSocket, compared with TCP',
          measured: throughput(`${STATEMENTS} statements`),
          limit: SOCKET_LEAST,
          atLeast: true,
          unit: '×',
        },
        {
          name: 'a large reply over WebSocket, compared with TCP',
          measured: throughput('20 MB'),
          limit: SOCKET_LEAST,
          atLeast: true,
          unit: '×',
        },
      ],
      times: { 'One request': times, 'A session': sessions },
    };
  } finally {
    await stack.stop();
  }
}
