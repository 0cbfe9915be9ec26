import { openDatabase } from '../../edge/database/database.ts';
import { hosts, projects } from '../../edge/database/schema.ts';
import { Api } from '../support/api.ts';
import { migratedD1 } from '../support/records/d1.ts';
import { newSigner, startProvider } from '../support/sign-in/provider.ts';
import { throughput } from '../support/throughput.ts';
import { bundle, OBJECTS, SETTINGS, startWorker } from '../support/worker/worker.ts';
import type { Goal, Report } from './report.ts';
import { median, runInterleaved } from './rounds.ts';

const ROUNDS = 9;
const CLIENTS = 16;
const MILLISECONDS = 700;
const LIMIT = 0.45;

const METHOD = `Requests per second that one workerd serves to ${CLIENTS} clients that never wait, over keep-alive connections and \
bypassing Miniflare's own Worker, interleaved in ${ROUNDS} rounds of ${MILLISECONDS} ms. Both sides run in one \
isolate. "me" is \`GET /api/v1/me\`, warm: the token is verified from the cache, the request is counted \
from the share of the limit that the isolate has borrowed and logged, D1 is not queried. "a project" also reads D1. The bare Worker is Hono with one route; then the same \
with a call to a Durable Object that does nothing, with a logged line in addition, and with a call to the object and \
to D1.`;

const FINDINGS = `Before isolates borrowed shares of the limits: where the time was spent, by CPU time of workerd, which a busy machine changes less than the rate: "me" takes 1.5 to \
1.8 times that of "bare, object, log". Share of a request's cost saved by removing one part (9 rounds on a busy \
machine, approximate; parts overlap): the count 42 %, the log line 20 %, the security headers 15 %, the three \
middlewares that only pass a GET on (CORS, writes, body) 5 %, token and user from the cache 4 %, validation 4 %. V8's \
profile has no hot spot in the gateway's code: its two largest entries are the calls of the object and of the log, a \
fifth each, and they are as large in the bare Worker.

Tried, old and new interleaved, as CPU time of new ÷ old, the median and its 95 % bootstrap interval; identical code \
in two Workers gave 0.97 (0.89 to 1.11). Object ids cached by bucket, \`c.get\` instead of \`c.var\`, fewer \
middlewares and no \`async\` in those that only pass requests on: 1.02 together (1.00 to 1.04). Additionally the \
object's response as a string: 0.98 (0.94 to 1.04). Additionally a custom loop instead of Hono's \`secureHeaders\`: \
0.94 (0.89 to 0.97); the loop alone: 0.95 (0.86 to 1.03), in another run 0.99 to 1.08. Omitting five headers that only \
old browsers read: 0.98 to 1.02. Hono's faster router, which does not support \`branches/lookup\` next to \
\`branches/:branch_ref\`: 0.91 to 0.99. None was adopted: none is a certain gain alone. Adopted earlier: Hono's \
\`c.header\` copies an existing response and turns its body into a stream, five times per request; without these \
copies the gateway serves 1.3 times as many requests.`;

/** @param signal aborts it */
export async function measureEdgeThroughput(signal: AbortSignal): Promise<Report> {
  const signer = newSigner('key-1');
  const provider = await startProvider(signer);
  const worker = startWorker(await bundle('throughput-worker'), {
    d1Databases: ['DB'],
    durableObjects: {
      ...OBJECTS,
      EMPTY: { className: 'Empty', useSQLite: true },
    },
    bindings: { ...SETTINGS, IDP_URL: provider.url, LIMIT_READS_PER_MINUTE: '100000000' },
    unsafeDirectSockets: [{ host: '127.0.0.1', port: 0 }],
    // One line per request would drown the report.
    handleStructuredLogs: () => {},
  });
  try {
    await worker.ready;
    const { origin } = await worker.unsafeGetDirectURL();
    const token = await signer.token({
      gid: 'user-1',
      email: 'ada@example.com',
      role: 'owner',
      scp: ['branchgate:read'],
      exp: new Date(Date.now() + 3_600_000).toISOString(),
      ctx: { tenant_id: 'acme' },
    });
    const database = await migratedD1(worker);
    const project = await insertProject(database, new Api(origin, token));
    const requests = (path: string) => () => {
      signal.throwIfAborted();
      return throughput({ url: origin + path, token, clients: CLIENTS, milliseconds: MILLISECONDS });
    };
    const rates = await runInterleaved(ROUNDS, {
      bare: requests('/bare'),
      'bare, object': requests('/bare/object'),
      'bare, object, log': requests('/bare/object-and-log'),
      'bare, object, D1': requests('/bare/object-and-d1'),
      me: requests('/api/v1/me'),
      'a project': requests(`/api/v1/projects/${project}`),
    });
    const ratio = (
      one: keyof typeof rates,
      other: keyof typeof rates,
      limit: number | null = null,
    ): Goal => ({
      name: `${one} ÷ ${other}`,
      measured: median(rates[one]) / median(rates[other]),
      limit,
      atLeast: true,
      unit: '×',
    });
    return {
      title: 'Throughput at the edge',
      method: METHOD,
      goals: [
        ratio('me', 'bare', LIMIT),
        ratio('bare, object', 'bare'),
        ratio('bare, object, log', 'bare'),
        ratio('me', 'bare, object, log'),
        ratio('a project', 'bare, object, D1'),
      ],
      findings: FINDINGS,
      counts: { 'Requests a second': rates },
    };
  } finally {
    await worker.dispose();
    await provider.stop();
  }
}

async function insertProject(database: D1Database, api: Api): Promise<string> {
  const { body } = await api.get<{ id: string }>('/api/v1/me');
  const db = openDatabase(database);
  const hostId = crypto.randomUUID();
  const id = crypto.randomUUID();
  const now = new Date();
  const ports = { directPort: 5432, pooledPort: 6432 };
  await db.batch([
    db.insert(hosts).values({ id: hostId, name: 'eu-1', dbHost: 'db.example.com', ...ports, createdAt: now }),
    db.insert(projects).values({
      id,
      name: 'Web shop',
      appKey: 'web_shop',
      env: 'prod',
      status: 'active',
      storageQuotaGib: 1,
      hostId,
      createdBy: body.id,
      tenantId: 'acme',
      createdAt: now,
      updatedAt: now,
    }),
  ]);
  return id;
}
