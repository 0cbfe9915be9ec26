import { type Edit, RESULTS, readVitest, type Suite } from './suite.ts';

/** Packages that the suite of drizzle imports. Its own list has the drivers of every database. */
const PACKAGES = {
  '@neondatabase/serverless': '1.1.0',
  'async-retry': '1.3.3',
  dockerode: '4.0.6',
  dotenv: '16.6.1',
  'drizzle-orm': '0.45.2',
  'get-port': '7.1.0',
  keyv: '5.5.5',
  pg: '8.23.0',
  uuid: '9.0.1',
  'vite-tsconfig-paths': '4.3.2',
  vitest: '3.2.4',
  ws: '8.18.3',
};

const drizzle = (variables: string, files: string, edits: readonly Edit[]): Suite => ({
  repository: 'drizzle-team/drizzle-orm',
  tag: '0.45.2',
  commit: '273c78071d4841b497f5144734b38294df7ec64b',
  folders: ['integration-tests/tests/pg', 'integration-tests/drizzle2'],
  root: 'integration-tests',
  needs: [],
  packages: PACKAGES,
  edits,
  compiled: [],
  run: `export ${variables}
    node_modules/.bin/vitest run --reporter=json --outputFile=${RESULTS} ${files}`,
  read: readVitest,
});

const GATEWAY = "process.env.BRANCHGATE_URL + '/sql'";

/** By node-postgres. */
export const drizzleOverTcp = drizzle(
  'PG_CONNECTION_STRING="$DIRECT_URL"',
  'tests/pg/node-postgres.test.ts',
  [],
);

/** By Neon's client, over HTTP and WebSocket. */
export const drizzleOverNeon = drizzle(
  'NEON_HTTP_CONNECTION_STRING="$DATABASE_URL" NEON_SERVERLESS_CONNECTION_STRING="$DIRECT_URL"',
  'tests/pg/neon-http.test.ts tests/pg/neon-http-batch.test.ts tests/pg/neon-serverless.test.ts',
  [
    [
      'tests/pg/neon-http.test.ts',
      'neonConfig.fetchEndpoint = (host) => {',
      `neonConfig.fetchEndpoint = ${GATEWAY};\n(host) => {`,
    ],
    [
      'tests/pg/neon-http-batch.test.ts',
      'import { neon, type NeonQueryFunction }',
      'import { neon, neonConfig, type NeonQueryFunction }',
    ],
    [
      'tests/pg/neon-http-batch.test.ts',
      'client = neon(connectionString);',
      `neonConfig.fetchEndpoint = ${GATEWAY};\nclient = neon(connectionString);`,
    ],
    [
      'tests/pg/neon-serverless.test.ts',
      'neonConfig.wsProxy = (host) =>',
      "neonConfig.wsProxy = (host, port) => host + ':' + process.env.SQL_PORT + '/v2?address=' + host + ':' + port;\n(host) =>",
    ],
    ['tests/pg/neon-serverless.test.ts', 'neonConfig.useSecureWebSocket = false;', ''],
  ],
);
