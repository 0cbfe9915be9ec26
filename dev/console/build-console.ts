import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ROOT } from '../stack/repository.ts';
import { HEADERS } from './asset-headers.ts';

const VITE = join(ROOT, 'node_modules/vite/bin/vite.js');
const CONFIGURATION = join(ROOT, 'console/vite.config.ts');

/**
 * Builds the console into a folder of static assets, with the headers that Cloudflare and Miniflare send with them.
 * Vite runs in a process of its own, because under NODE_ENV=test it would bundle the development build of React.
 */
export async function buildConsole(folder: string): Promise<void> {
  const args = [VITE, 'build', '--config', CONFIGURATION, '--outDir', folder, '--logLevel', 'warn'];
  const env = { PATH: process.env.PATH, NODE_ENV: 'production' };
  await promisify(execFile)(process.execPath, args, { cwd: join(ROOT, 'console'), env });
  writeFileSync(join(folder, '_headers'), HEADERS);
}
