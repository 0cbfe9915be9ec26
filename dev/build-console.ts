import { join } from 'node:path';
import { buildConsole } from './console/build-console.ts';
import { ROOT } from './stack/repository.ts';

/** `wrangler deploy` runs it: builds the console into the folder that `[assets]` names. */
await buildConsole(join(ROOT, 'dist/console'));
