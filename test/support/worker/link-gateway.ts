import { WebSocket } from 'ws';
import type { LastMeasurement, Recorded } from '../../../edge/monitoring/measurements.ts';
import type { ProjectMeasurement } from '../../../shared/measurement.ts';
import type { Bounds } from '../../../shared/protocol/bounds.ts';
import type { Method, Params } from '../../../shared/protocol/operations.ts';
import { freePort } from '../free-port.ts';
import { migratedD1 } from '../records/d1.ts';
import type { FoundLease, LeaseChange } from './link-worker.ts';
import { bundle, PLATFORM_SECRET, SETTINGS, startWorker } from './worker.ts';

const WORKER = 'link-gateway';

/** The link's own part of the gateway in real workerd, with a real D1 that has the migrations. */
export async function startLinkGateway(options: {
  stateDir: string;
  port?: number;
  bounds?: Partial<Bounds>;
  bindings?: Record<string, string>;
}) {
  const worker = startWorker(await bundle('link-worker'), {
    name: WORKER,
    port: options.port ?? (await freePort()),
    resourcePersistencePath: options.stateDir,
    d1Databases: ['DB'],
    durableObjects: {
      HOST_LINK: { className: 'TestedHostLink', useSQLite: true },
      PROJECT_COORDINATOR: { className: 'ProjectCoordinator', useSQLite: true },
      RATE_LIMITER: { className: 'RateLimiter', useSQLite: true },
    },
    unsafeDirectSockets: [{ host: '127.0.0.1', port: 0 }],
    bindings: {
      ...SETTINGS,
      LIMIT_PUBLIC_PER_MINUTE: '100000',
      BOUNDS: options.bounds ?? {},
      ...options.bindings,
    },
  });
  const url = (await worker.ready).origin;
  const database = await migratedD1(worker);

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
    database,
    /** A request of the platform's operator. */
    asOperator: (method: string, path: string, body?: unknown) =>
      fetch(`${url}/platform/v1${path}`, {
        method,
        headers: { authorization, 'content-type': 'application/json' },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      }),
    registerHost: async (name: string) => {
      const body = { name, db_host: 'db.example.com' };
      const response = await post('/platform/v1/hosts', body, { authorization });
      return (await response.json()) as {
        host_id: string;
        enrolment_token: string;
        expires_at: string;
        replaced: boolean;
      };
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
    /** Measurements that the project's coordinator received. */
    measurements: async (projectId: string) =>
      (await fetch(`${url}/test/measurements/${projectId}`)).json() as Promise<ProjectMeasurement[]>,
    isLinked: async (hostId: string) => (await fetch(`${url}/test/linked/${hostId}`)).json(),
    /** Takes the object out of memory and leaves its sockets open, as the runtime does with an idle one. */
    hibernate: (hostId: string) =>
      worker.unsafeEvictDurableObject(WORKER, 'TestedHostLink', { name: hostId, webSockets: 'hibernate' }),
    /** The measurements of the project, as routes read them. */
    monitored: async (projectId: string) =>
      (await fetch(`${url}/test/monitored/${projectId}`)).json() as Promise<Recorded>,
    /** What the object of the project has stored of them. */
    storedMeasurement: async (projectId: string) =>
      (await fetch(`${url}/test/stored/${projectId}`)).json() as Promise<LastMeasurement | null>,
    /** What the link of the host keeps of them. */
    keptHead: async (hostId: string, projectId: string) =>
      (await fetch(`${url}/test/kept/${hostId}/${projectId}`)).json() as Promise<string | null>,
    /** What the link of the host has stored of its lease, after a change. */
    lease: async (hostId: string, change: LeaseChange = {}) =>
      (await post(`/test/lease/${hostId}`, change)).json() as Promise<FoundLease>,
    /** Has the host reconciled now. */
    reconcile: async (hostId: string) => post(`/test/reconcile/${hostId}`, {}),
    /** Takes the object of the project out of memory, if it is there. */
    loseCoordinator: (projectId: string) =>
      worker.unsafeEvictDurableObject(WORKER, 'ProjectCoordinator', { name: projectId }).catch((error) => {
        if (!String(error).includes('not currently running')) throw error;
      }),
    /** Its address past Miniflare's own Worker. */
    directUrl: async () => (await worker.unsafeGetDirectURL(WORKER)).origin,
    objects: () => worker.listDurableObjectIds('HOST_LINK'),
    stop: () => worker.dispose(),
  };
}

export type LinkGateway = Awaited<ReturnType<typeof startLinkGateway>>;
