import { join } from 'node:path';
import { buildConsole } from './console/build-console.ts';
import { bundleWorker } from './gateway/bundle-worker.ts';
import { workerConfiguration } from './gateway/worker-configuration.ts';
import { ROOT } from './stack/repository.ts';

/** `wrangler deploy` runs it: builds the Worker, and the console into the folder that `[assets]` names. */
await Promise.all([
  bundleWorker(join(ROOT, workerConfiguration().main), { deployed: true }),
  buildConsole(join(ROOT, 'dist/console')),
]);
