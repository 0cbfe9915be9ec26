import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { Miniflare, Response } from 'miniflare';
import type { Version } from './cloudflare.ts';

type Config = NonNullable<ConstructorParameters<typeof Miniflare>[0]['workers']>[number];

/**
 * Starts an uploaded Worker in workerd with its static files and bindings.
 * @param folder for its files
 * @param receive gets each request that the Worker sends to the network, which is the mail service
 */
export async function startUploaded(
  version: Version,
  folder: string,
  receive: (url: string, body: string) => void,
): Promise<Miniflare> {
  const assets = join(folder, 'assets');
  for (const [path, content] of version.assets) {
    const file = join(assets, path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, content);
  }
  writeFileSync(join(assets, '_headers'), version.assetsConfig._headers ?? '');
  const name = 'uploaded';
  const objects = version.bindings.filter(({ type }) => type === 'durable_object_namespace');
  const config: Config = {
    config: {
      name,
      compatibilityDate: version.compatibility.date,
      compatibilityFlags: version.compatibility.flags,
      manifest: {
        mainModule: version.mainModule,
        modules: Object.fromEntries(
          [...version.modules].map(([path, contents]) => [path, { type: 'esm' as const, contents }]),
        ),
      },
      assets: {
        directory: assets,
        notFoundHandling: 'single-page-application',
        runWorkerFirst: version.assetsConfig.run_worker_first ?? [],
        hasUserWorker: true,
      },
      exports: Object.fromEntries(
        objects.map((object) => [
          String(object.class_name),
          { type: 'durable-object' as const, storage: 'sqlite' as const },
        ]),
      ),
      env: Object.fromEntries(version.bindings.map((binding) => [binding.name, bindingOf(name, binding)])),
    },
  };
  const miniflare = new Miniflare({
    resourcePersistencePath: join(folder, 'state'),
    cf: false,
    telemetry: { enabled: false },
    enableDevRegistry: false,
    logRequests: false,
    workers: [
      {
        ...config,
        dev: {
          outboundService: {
            type: 'fetcher',
            async handler(request) {
              receive(request.url, await request.text());
              return new Response('{}');
            },
          },
        },
      },
    ],
  });
  await miniflare.ready;
  return miniflare;
}

function bindingOf(worker: string, binding: Version['bindings'][number]) {
  switch (binding.type) {
    case 'd1':
      return { type: 'd1' as const, id: String(binding.id) };
    case 'durable_object_namespace':
      return { type: 'durable-object' as const, worker, exportName: String(binding.class_name) };
    case 'assets':
      return { type: 'assets' as const };
    default:
      return { type: 'text' as const, value: String(binding.text) };
  }
}
