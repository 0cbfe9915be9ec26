import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { makeOnce } from './make-once.ts';
import { ROOT } from './repository.ts';

/**
 * React Aria adds one `<style>` element to the page. The policy allows exactly that text; a browser test
 * fails when another version of the library adds another one.
 */
const REACT_ARIA_STYLE = "'sha256-38RhXrc7EdReTKsOm23ZPOCUgniTUUcjky8QOOrQx6o='";

const POLICY = {
  'default-src': "'none'",
  'script-src': "'self'",
  'style-src': `'self' ${REACT_ARIA_STYLE}`,
  'font-src': "'self'",
  'img-src': "'self' data:",
  'connect-src': "'self'",
  'form-action': "'self'",
  'base-uri': "'none'",
  'frame-ancestors': "'none'",
  'require-trusted-types-for': "'script'",
};

/** @param origins besides the own one that the page may send requests to */
const policy = (origins: readonly string[]) =>
  Object.entries({ ...POLICY, 'connect-src': [POLICY['connect-src'], ...origins].join(' ') })
    .map(([directive, sources]) => `${directive} ${sources}`)
    .join('; ');

const EVERY_PAGE = {
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Permissions-Policy': 'camera=(), geolocation=(), microphone=()',
  'Referrer-Policy': 'no-referrer',
  // The API sends the same. Without it, a visitor who types the name of the console could get a forged page by http.
  'Strict-Transport-Security': 'max-age=15552000; includeSubDomains',
  'X-Content-Type-Options': 'nosniff',
  'X-Frame-Options': 'DENY',
};

/** The names of these files contain a hash of their content. */
const HASHED_FILES = { 'Cache-Control': 'public, max-age=31536000, immutable' };

const rule = (path: string, headers: Record<string, string>) =>
  [path, ...Object.entries(headers).map(([name, value]) => `  ${name}: ${value}`)].join('\n');

/** A source of a content security policy is a name: browsers ignore literal addresses, save for 127.0.0.1. */
const isSource = ({ hostname }: URL) => hostname === '127.0.0.1' || /[a-z]/i.test(hostname.at(-1) ?? '');

/**
 * Writes the file `_headers` of the static assets, with the names of the gateway that the console finds the
 * address of its browser with.
 */
export function writeHeaders(
  folder: string,
  { BASE_URL = 'https://localhost', IPV4_HOST, IPV6_HOST }: Readonly<Record<string, string | undefined>>,
): void {
  const { protocol } = new URL(BASE_URL);
  const origins = [IPV4_HOST, IPV6_HOST].flatMap((host) => {
    const url = host === undefined ? null : new URL(`${protocol}//${host}`);
    return url && isSource(url) ? [url.origin] : [];
  });
  const everyPage = { 'Content-Security-Policy': policy(origins), ...EVERY_PAGE };
  writeFileSync(join(folder, '_headers'), `${rule('/*', everyPage)}\n${rule('/assets/*', HASHED_FILES)}\n`);
}

const VITE = join(ROOT, 'node_modules/vite/bin/vite.js');
const CONFIGURATION = join(ROOT, 'console/vite.config.ts');

/** What the build reads. The lock file stands for all packages. */
const SOURCES = ['console', 'client', 'shared', 'dev/build/console.ts', 'package-lock.json'];
/** The last build, so that a start whose sources are the same need not wait for another one. */
const CACHE = join(ROOT, 'node_modules/.cache/console');
const COMPILED = join(ROOT, 'node_modules/.cache/compiled');

function hashOfSources(): string {
  const hash = createHash('sha256').update(process.version);
  const add = (path: string): void => {
    const file = join(ROOT, path);
    if (statSync(file).isDirectory()) for (const name of readdirSync(file).sort()) add(`${path}/${name}`);
    else hash.update(`${path}\n`).update(createHash('sha256').update(readFileSync(file)).digest());
  };
  for (const path of SOURCES) add(path);
  return hash.digest('hex');
}

/**
 * Builds the console into a folder of static assets, with the headers that Cloudflare and Miniflare send with
 * them. Vite runs in a process of its own, because under NODE_ENV=test it would bundle the development build
 * of React.
 */
export async function buildConsole(folder: string): Promise<void> {
  const hash = hashOfSources();
  const built = await makeOnce(join(CACHE, hash), async (outDir) => {
    const args = [VITE, 'build', '--config', CONFIGURATION, '--outDir', outDir, '--logLevel', 'warn'];
    // Vite would keep compiled code in the folder for temporary files of the machine.
    const env = { PATH: process.env.PATH, NODE_ENV: 'production', NODE_COMPILE_CACHE: COMPILED };
    await promisify(execFile)(process.execPath, args, { cwd: join(ROOT, 'console'), env });
  });
  // Those of other sources. A name with a full stop is one that another process is making.
  for (const name of readdirSync(CACHE))
    if (/^\w+$/.test(name) && name !== hash) rmSync(join(CACHE, name), { recursive: true, force: true });
  rmSync(folder, { recursive: true, force: true });
  cpSync(built, folder, { recursive: true });
  writeHeaders(folder, {});
}
