import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/free-port.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';
import { installPeers, peerFile, peerVersions } from './peers.ts';
import type { Goal, Report } from './report.ts';
import { median, runInterleaved, timed } from './rounds.ts';
import { serverVersions } from './xfs-stack.ts';

const PEER = '@supabase/postgres-meta';
const TABLES = 1_000;
/** Tables per statement, because each one holds locks until the end of the statement. */
const TABLES_PER_STATEMENT = 100;
const ROUNDS = 7;
const LIMIT = 0.15;

const METHOD = `${TABLES.toLocaleString('en')} tables of four columns in one schema of one database, each with a primary key and, \
except the first, a foreign key. Requested interleaved in ${ROUNDS} rounds, warm, until the JSON is parsed. Ours: \
\`GET …/tables\` through gateway, link and agent, whose response includes the columns. The peer: its own server on the \
same machine and with the same login, requested as Supabase Studio requests its page of tables, \`GET \
/tables?included_schemas=public&include_columns=true\`; columns are also its default. Then the same without columns, \
which is less than ours returns. Both sides log in to PostgreSQL for each request; the peer does so over TLS and with \
a password, about 10 ms of its time. The peer returns more for each table (defaults, relationships, comments, dead \
rows); ours also returns views. With columns the peer's time grows with the square of the number of tables, and its \
time limit of 55 s is lifted.`;

/** @param signal aborts it */
export async function measureTableList(signal: AbortSignal): Promise<Report> {
  installPeers();
  const stack = await startStack({ env: UNLIMITED, restarts: false });
  try {
    const { database, url } = await makeTables(stack);
    const peer = await startPeer(database);
    try {
      const authorization = `Bearer ${await stack.token()}`;
      const requestPeer = (columns: boolean) => () =>
        request<unknown[]>(`${peer.url}/tables?included_schemas=public&include_columns=${columns}`, signal);
      const times = await runInterleaved(ROUNDS, {
        ours: timedList(async () => {
          const { tables } = await request<{ tables: unknown[] }>(url, signal, { authorization });
          return tables;
        }),
        peer: timedList(requestPeer(true)),
        'peer, without columns': timedList(requestPeer(false)),
      });
      const ratio = (other: keyof typeof times, limit: number | null): Goal => ({
        name: `ours ÷ ${other}`,
        measured: median(times.ours) / median(times[other]),
        limit,
        unit: '×',
      });
      return {
        title: 'A list of tables',
        method: METHOD,
        setting: { ...(await serverVersions(stack)), ...peerVersions(PEER) },
        goals: [ratio('peer', LIMIT), ratio('peer, without columns', null)],
        times: { [`${TABLES.toLocaleString('en')} tables`]: times },
      };
    } finally {
      await peer.stop();
    }
  } finally {
    await stack.stop();
  }
}

/** Measures the duration of a list, which must contain all tables. */
const timedList = (list: () => Promise<unknown[]>) => async () => {
  let found = 0;
  const ms = await timed(async () => {
    found = (await list()).length;
  });
  if (found !== TABLES) throw new Error(`${found} tables instead of ${TABLES}`);
  return ms;
};

async function request<B>(
  url: string,
  signal: AbortSignal,
  headers: Record<string, string> = {},
): Promise<B> {
  const response = await fetch(url, { headers, signal });
  if (response.status !== 200) throw new Error(`${url}: ${response.status} ${await response.text()}`);
  return (await response.json()) as B;
}

/** @returns the database's URL for the peer, and the list's URL in our API */
async function makeTables(stack: Stack): Promise<{ database: string; url: string }> {
  const api = new Api(stack.url, await stack.token());
  const project = await api.project('Many tables');
  await api.allow(project.id);
  const { direct_url } = await api.credentials(project.id, 'main');
  const statements = Array.from({ length: TABLES }, (_, n) => {
    const reference = n > 0 ? `REFERENCES item_${n - 1}` : '';
    return `CREATE TABLE item_${n} (id bigint PRIMARY KEY, title text NOT NULL,
      made timestamptz NOT NULL DEFAULT now(), before bigint ${reference});`;
  });
  for (let from = 0; from < TABLES; from += TABLES_PER_STATEMENT) {
    await query(direct_url, statements.slice(from, from + TABLES_PER_STATEMENT).join('\n'));
  }
  await query(direct_url, 'VACUUM ANALYZE');
  return {
    database: `${direct_url.split('?')[0]}?sslmode=no-verify`,
    url: `${stack.url}/api/v1/projects/${project.id}/branches/main/tables?schema=public`,
  };
}

/** @param database its URL */
async function startPeer(database: string): Promise<{ url: string; stop(): Promise<void> }> {
  const port = await freePort();
  const child = spawn(process.execPath, [peerFile(`${PEER}/dist/server/server.js`)], {
    env: {
      PATH: process.env.PATH,
      PG_META_DB_URL: database,
      PG_META_HOST: '127.0.0.1',
      PG_META_PORT: String(port),
      PG_QUERY_TIMEOUT_SECS: '0',
    },
    stdio: 'ignore',
  });
  const ended = once(child, 'exit');
  const url = `http://127.0.0.1:${port}`;
  const stop = async () => {
    child.kill('SIGKILL');
    await ended;
  };
  try {
    await eventually(() => fetch(`${url}/health`), 30);
  } catch (error) {
    await stop();
    throw error;
  }
  return { url, stop };
}
