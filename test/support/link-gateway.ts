import { join } from 'node:path';
import { build } from 'esbuild';
import { convertV4MiniflareOptions, Miniflare } from 'miniflare';
import { WebSocket } from 'ws';
import { applyMigrations } from '../../dev/gateway/migrations.ts';
import type { ProjectMeasurement } from '../../shared/metrics/measurement.ts';
import type { Bounds } from '../../shared/protocol/bounds.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';

export const PLATFORM_SECRET = 'platform-secret-of-the-tests-0123456789';

const WORKER = 'link-gateway';
const root = `${join(import.meta.dirname, '../..')}/`;

/** The link's own part of the gateway in real workerd, with a real D1 that has the migrations. */
export async function startLinkGateway(options: {
  stateDir: string;
  port?: number;
  bounds?: Partial<Bounds>;
}) {
  const miniflare = new Miniflare(
    convertV4MiniflareOptions({
      host: '127.0.0.1',
      port: options.port ?? 0,
      cf: false,
      telemetry: { enabled: false },
      resourcePersistencePath: options.stateDir,
      name: WORKER,
      modules: true,
      script: await bundle(),
      compatibilityDate: '2026-11-01',
      d1Databases: { DB: 'branchgate' },
      durableObjects: {
        HOST_LINK: { className: 'TestedHostLink', useSQLite: true },
        PROJECT_COORDINATOR: { className: 'ProjectCoordinator', useSQLite: true },
        RATE_LIMITER: { className: 'RateLimiter', useSQLite: true },
      },
      bindings: {
        IDP_URL: 'http://127.0.0.1:1',
        CREDENTIAL_KEYS: `1:${Buffer.alloc(32).toString('base64')}`,
        PLATFORM_SECRET,
        LIMIT_PUBLIC_PER_MINUTE: '100000',
        BOUNDS: options.bounds ?? {},
      },
    }),
  );
  const url = (await miniflare.ready).origin;
  await applyMigrations(await miniflare.getD1Database('DB'), `${root}edge/database/migrations`);

  const post = (path: string, body: unknown, headers: Record<string, string> = {}) =>
    fetch(`${url}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
    });
  const authorization = `Bearer ${PLATFORM_SECRET}`;

  return {
    url,
    port: Number(new URL(url).port),
    post,
    database: () => miniflare.getD1Database('DB'),
    registerHost: async (name: string) => {
      const body = { name, db_host: 'db.example.com', direct_port: 5432, pooled_port: 6432 };
      const response = await post('/platform/v1/hosts', body, { authorization });
      return (await response.json()) as { host_id: string; enrolment_token: string; expires_at: string };
    },
    /** Status that answers the attempt to open a WebSocket. */
    upgrade: (path: string) => {
      const socket = new WebSocket(`${url.replace('http', 'ws')}${path}`);
      return new Promise<number>((resolve, reject) => {
        socket.on('error', () => {});
        socket.on('unexpected-response', (_request, { statusCode = 0 }) => {
          resolve(statusCode);
          socket.terminate();
        });
        socket.on('open', () => reject(new Error('the socket opened')));
      });
    },
    call: async <M extends Method>(host_id: string, method: M, params: Params<M>) =>
      (await post('/test/call', { host_id, method, params })).json(),
    /** Measurements that the project's coordinator was told of. */
    measurements: async (projectId: string) =>
      (await fetch(`${url}/test/measurements/${projectId}`)).json() as Promise<ProjectMeasurement[]>,
    isLinked: async (hostId: string) => (await fetch(`${url}/test/linked/${hostId}`)).json(),
    /** Takes the object out of memory and leaves its sockets open, as the runtime does with an idle one. */
    hibernate: (hostId: string) =>
      miniflare.unsafeEvictDurableObject(WORKER, 'TestedHostLink', { name: hostId, webSockets: 'hibernate' }),
    objects: () => miniflare.listDurableObjectIds('HOST_LINK'),
    stop: () => miniflare.dispose(),
  };
}

export type LinkGateway = Awaited<ReturnType<typeof startLinkGateway>>;

let bundled: Promise<string> | undefined;

function bundle(): Promise<string> {
  bundled ??= build({
    entryPoints: [`${root}test/support/link-worker.ts`],
    bundle: true,
    write: false,
    format: 'esm',
    target: 'es2023',
    conditions: ['workerd'],
    external: ['cloudflare:*'],
  }).then(({ outputFiles }) => outputFiles.map(({ text }) => text).join(''));
  return bundled;
}
