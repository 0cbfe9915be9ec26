import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { connect, createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api, type Credentials } from '../support/api.ts';
import { type ClientNamespace, makeClientNamespace } from '../support/client-namespace.ts';
import { freePort } from '../support/free-port.ts';
import { gatewayFront } from '../support/gateway-front.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type SourceServer, startSource } from '../support/source-server.ts';
import { type Stack, startStack, temporaryFolder, UNLIMITED } from '../support/stack/stack.ts';
import { clientPackages, failuresOf, KNOWN } from './client-packages.ts';
import { drizzleOverNeon } from './drizzle.ts';
import { type Edit, expectDocumented, RESULTS, readVitest, SUITE_WITHIN_MS, type Suite } from './suite.ts';

/** The two addresses that docs/serverless.md has. */
const SETTINGS = `neonConfig.fetchEndpoint = process.env.BRANCHGATE_URL + '/sql';
neonConfig.wsProxy = (host, port) => host + ':' + process.env.SQL_PORT + '/v2?address=' + host + ':' + port;
`;

const SUITES: Record<string, Suite> = {
  'neon-serverless': {
    repository: 'neondatabase/serverless',
    tag: 'v1.1.0',
    commit: 'd8d42fc57898c6147ed03816744ad4a80b1ef55b',
    folders: ['tests'],
    root: '.',
    needs: ['@neondatabase/serverless', 'drizzle-orm', 'node-fetch', 'pg', 'subtls', 'vitest', 'ws'],
    edits: [
      ['tests/setup.ts', 'beforeAll(setup);', `${SETTINGS}beforeAll(setup);`],
      // Results over WebSocket are compared with a server of PostgreSQL that is no branch.
      [
        'tests/cli/ws.test.ts',
        'new PgPool({ connectionString: DB_DIRECT_URL })',
        'new PgPool({ connectionString: process.env.PLAIN_URL })',
      ],
    ] satisfies Edit[],
    compiled: [],
    run: `export VITE_NEON_DB_URL="$DIRECT_URL" VITE_NEON_DB_POOLER_URL="$DATABASE_URL"
      node_modules/.bin/vitest run --config=tests/vite.config.mts --environment=node --testTimeout=60000 \\
        --reporter=json --outputFile=${RESULTS} tests/cli/http.test tests/cli/httpTransaction tests/cli/ws tests/packages/drizzle`,
    read: readVitest,
  },
  'drizzle-neon': drizzleOverNeon,
};

/** Programs of a network of their own, whose address a rule of `sql` admits, and nothing else. */
describe.runIf(IS_NIGHTLY)('clients of functions', () => {
  let network: ClientNamespace;
  let source: SourceServer;
  let stack: Stack;
  let credentials: Credentials;
  const servers: Server[] = [];
  const home = temporaryFolder();

  const listen = async (server: Server): Promise<number> => {
    const port = await freePort();
    await once(server.listen(port, network.host), 'listening');
    servers.push(server);
    return port;
  };

  beforeAll(async () => {
    network = makeClientNamespace();
    source = await startSource('');
    stack = await startStack({
      env: { ...UNLIMITED, LIMIT_SQL_PER_MINUTE: '100000', LISTEN_ADDRESSES: `127.0.0.1,${network.host}` },
      restarts: false,
    });
    const api = new Api(stack.url, await stack.token());
    const { id } = await api.project('Functions');
    const path = `/api/v1/projects/${id}`;
    await api.post(`${path}/branches`, { branch_name: 'pr-1' }, { 'CF-Connecting-IP': '203.0.113.9' });
    await api.patch(`${path}/branches/pr-1`, { connection_attempts_per_minute: 'max' });
    await api.post(`${path}/network-rules`, { cidr: network.address, via: 'sql' });
    credentials = await api.credentials(id, 'pr-1', '?role=owner');

    const { host, port } = new URL(stack.url);
    const plain = createServer((socket) => {
      const other = connect(source.port, '127.0.0.1');
      for (const one of [socket, other]) one.on('error', () => {});
      socket.pipe(other).pipe(socket);
    });
    const { direct_port, pooled_port, sql_port } = stack.state;
    await network.relay({
      [Number(port)]: await listen(gatewayFront(host)),
      [source.port]: await listen(plain),
      ...Object.fromEntries([direct_port, pooled_port, sql_port].map((own) => [own, own])),
    });
  });
  afterAll(async () => {
    for (const server of servers) server.close();
    await stack?.stop();
    await source?.stop();
    network?.remove();
    rmSync(home, { recursive: true, force: true });
  });

  const run = (words: string[]) =>
    network.run(words, {
      cwd: home,
      env: {
        PATH: process.env.PATH,
        HOME: home,
        BRANCHGATE_URL: stack.url,
        SQL_PORT: String(stack.state.sql_port),
        DATABASE_URL: credentials.database_url,
        DIRECT_URL: credentials.direct_url,
        PLAIN_URL: source.url({ search: '?sslmode=no-verify' }),
        NODE_EXTRA_CA_CERTS: stack.state.ca_file,
      },
    });

  test('find the ports closed', async () => {
    for (const url of [credentials.direct_url, credentials.database_url]) {
      const { code, stderr } = await run(['psql', url, '-c', 'select 1']);
      expect([code, stderr]).toEqual([2, expect.stringContaining('FATAL')]);
    }
  });

  test('of four drivers migrate, query and listen', async () => {
    const program = join(await clientPackages(), 'clients.mjs');
    const { code, stdout, stderr } = await run([...['env', 'CLIENTS_NAMED=neon', process.execPath, program]]);
    expect(code, stderr).toBe(0);
    const results = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, string>);
    expect(results).toHaveLength(8);
    const known = Object.entries(KNOWN).filter(([step]) => step.includes('neon'));
    expect(failuresOf(results)).toEqual(Object.fromEntries(known));
  });

  test.each(Object.entries(SUITES))(
    'the suite %s fails where docs/clients.md says so, and nowhere else',
    { timeout: SUITE_WITHIN_MS },
    (name, suite) => expectDocumented(name, suite, (script) => run(['sh', '-c', script])),
  );
});
