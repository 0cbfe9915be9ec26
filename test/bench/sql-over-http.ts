import { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { startStack, UNLIMITED } from '../support/stack/stack.ts';
import type { Report } from './report.ts';
import { median, medianRatio, runInterleaved, timed } from './rounds.ts';

const ROUNDS = 100;
/** Compared with a project's record, which takes the same calls but for the host's. */
const RECORDS_MAX = 2;
const COLD_LEAST = 2;

const METHOD = `A local stack: gateway in workerd, agent, PostgreSQL and PgBouncer on one machine. Interleaved in ${ROUNDS} rounds, warm: a project's \
record, \`select 1\` by \`POST /sql\` with the password of the branch, and the cold start of a function that connects over TCP instead, which is a new connection with \
TLS and SCRAM to the pooler, the same statement, and its end.`;

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
    return {
      title: 'SQL over HTTP',
      method: METHOD,
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
      ],
      times: { 'One request': times },
    };
  } finally {
    await stack.stop();
  }
}
