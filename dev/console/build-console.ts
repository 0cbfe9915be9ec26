import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'vite';
import { ROOT } from '../stack/repository.ts';
import { HEADERS } from './asset-headers.ts';

/** Builds the console into a folder of static assets, with the headers that Cloudflare and Miniflare send with them. */
export async function buildConsole(folder: string): Promise<void> {
  await build({
    configFile: join(ROOT, 'console/vite.config.ts'),
    logLevel: 'warn',
    build: { outDir: folder },
  });
  writeFileSync(join(folder, '_headers'), HEADERS);
}
