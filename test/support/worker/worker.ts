import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { build, transformSync } from 'esbuild';
import {
  convertV4MiniflareOptions,
  Miniflare,
  type V4SharedOptions,
  type V4WorkerOptionsShape,
} from 'miniflare';
import { oncePerRun } from '../run-folder.ts';

export const PLATFORM_SECRET = 'platform-secret-of-the-tests-0123456789';

const KEYS = `1:${Buffer.alloc(32).toString('base64')}`;

/** The gateway's required settings. */
export const SETTINGS = {
  BASE_URL: 'http://127.0.0.1',
  IDP_URL: 'http://127.0.0.1:1',
  SIGN_UP: 'open',
  CREDENTIAL_KEYS: KEYS,
  JWT_KEYS: KEYS,
  PLATFORM_SECRET,
  // The passwords of the tests protect nothing.
  PASSWORD_COST: '10',
};

/** For tests that create more projects than a tenant may have. */
export const UNCAPPED = {
  TENANT_PROJECT_LIMIT: '10000',
  TENANT_QUOTA_LIMIT_GIB: '10000',
  SELF_SIGNUP_PROJECT_LIMIT: '10000',
  SELF_SIGNUP_QUOTA_LIMIT_GIB: '10000',
};

/** The gateway's Durable Objects by binding, as `wrangler.toml` has them. */
export const OBJECTS = {
  HOST_LINK: { className: 'HostLink', useSQLite: true },
  PROJECT_COORDINATOR: { className: 'ProjectCoordinator', useSQLite: true },
  RATE_LIMITER: { className: 'RateLimiter', useSQLite: true },
  CHALLENGES: { className: 'Challenges', useSQLite: true },
  WEBHOOK_SENDER: { className: 'WebhookSender', useSQLite: true },
};

const COMPATIBILITY = { compatibilityDate: '2026-11-01', compatibilityFlags: ['nodejs_compat'] };

/** A Worker with an address of its own. */
const DIRECT_SOCKETS = [{ host: '127.0.0.1', port: 0 }];

/** The Worker beside a tested one through which a test calls its D1 and its objects. */
export const BINDINGS_WORKER = 'bindings';

type Options = Partial<V4SharedOptions & V4WorkerOptionsShape>;

/** How a Worker is started, besides its own configuration. */
interface Start {
  /** Where its storage survives it; default: in memory. */
  folder?: string | undefined;
  /** Isolates of the script that share one D1 and one set of objects; default: one. */
  isolates?: number;
}

const nameOf = (isolate: number) => `isolate-${isolate}`;

/**
 * A Worker in workerd that uses no network.
 * @param options its configuration besides the script
 */
export function startWorker(script: string, options: Options = {}, start: Start = {}): Miniflare {
  const { folder, isolates = 1 } = start;
  const [first, ...others] = Array.from({ length: isolates }, (_, isolate) =>
    convertV4MiniflareOptions({
      host: '127.0.0.1',
      port: 0,
      cf: false,
      telemetry: { enabled: false },
      modules: true,
      script,
      ...COMPATIBILITY,
      name: nameOf(isolate),
      ...options,
      ...(isolates > 1 && { unsafeDirectSockets: DIRECT_SOCKETS }),
      ...(isolate > 0 && { durableObjects: objectsElsewhere(options) }),
    }),
  ) as [ReturnType<typeof convertV4MiniflareOptions>, ...ReturnType<typeof convertV4MiniflareOptions>[]];
  return new Miniflare({
    ...first,
    workers: [...first.workers, ...others.flatMap(({ workers }) => workers), ...bindingsWorkers(options)],
    ...(folder !== undefined && { resourcePersistencePath: folder }),
  });
}

/** The objects of the first isolate. */
const objectsElsewhere = ({ durableObjects, name: scriptName = nameOf(0) }: Options) =>
  Object.fromEntries(
    Object.entries(durableObjects ?? {}).map(([binding, object]) => [
      binding,
      { ...(object as { className: string; useSQLite: boolean }), scriptName },
    ]),
  );

/** The address of one isolate of several, without the slash at its end. */
export const isolateUrl = async (worker: Miniflare, isolate: number): Promise<string> =>
  (await worker.unsafeGetDirectURL(nameOf(isolate))).origin;

/** Each transformation starts a program. */
let bindingsScript: string | undefined;

function bindingsWorkers(options: Options) {
  const { d1Databases } = options;
  if (d1Databases === undefined) return [];
  const source = readFileSync(join(import.meta.dirname, 'bindings-worker.ts'), 'utf8');
  bindingsScript ??= transformSync(source, { loader: 'ts' }).code;
  return convertV4MiniflareOptions({
    name: BINDINGS_WORKER,
    modules: true,
    script: bindingsScript,
    ...COMPATIBILITY,
    unsafeDirectSockets: DIRECT_SOCKETS,
    d1Databases,
    durableObjects: objectsElsewhere(options),
  }).workers;
}

/** The script of a Worker in this folder, bundled once a run. @param name of its file, without the ending */
export const bundle = (name: string): Promise<string> =>
  bundleFile(name, join(import.meta.dirname, `${name}.ts`));

/** The script of a Worker, bundled once a run under a name. */
export async function bundleFile(name: string, entryPoint: string): Promise<string> {
  const file = await oncePerRun(`${name}.mjs`, async (outfile) => {
    await build({
      entryPoints: [entryPoint],
      outfile,
      bundle: true,
      format: 'esm',
      target: 'es2023',
      conditions: ['workerd'],
      external: ['cloudflare:*', 'node:*'],
    });
  });
  return readFileSync(file, 'utf8');
}
