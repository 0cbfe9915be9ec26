import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer as createProxy } from 'node:http';
import { createServer } from 'node:https';
import { type AddressInfo, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ROOT } from '../../../dev/build/repository.ts';
import { PREPARED } from '../prepared.ts';
import { oncePerRun } from '../run-folder.ts';
import { FakeCloudflare, TOKEN } from './cloudflare.ts';

export const ADDRESS = 'gateway.example.test';
export const URL_OF_GATEWAY = `https://${ADDRESS}`;
const RESOLVER = 'cloudflare-dns.com';
export const MAIL = 'mail.example.test';
const PROVIDER = 'idp.example.test';

const WATCH_MS = 50;

interface Ended {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** What the gateway answers to a request. */
type Gateway = (request: Request) => Promise<Response> | Response;

/** The flags of a first run. */
const FLAGS = {
  name: 'gate',
  address: ADDRESS,
  'mail-from': 'Gate <gate@example.test>',
  owner: 'ada@example.test',
};

const flag = ([name, value]: [string, string]) => [`--${name}`, value];

/**
 * An operator's machine: an empty folder, a login at Cloudflare, and a network in which the deployed gateway
 * answers.
 */
export class Operator {
  readonly cloudflare = new FakeCloudflare();
  readonly folder = mkdtempSync(join(tmpdir(), 'branchgate-operator-'));
  readonly record = join(this.folder, 'record');
  readonly secretsFile = join(this.folder, 'copy/gate.secrets');
  readonly artifacts = join(this.folder, 'artifacts');
  /** Names with a DNS record. */
  readonly named = new Set<string>();
  readonly invitations: unknown[] = [];
  /** Host names that nobody can connect to. */
  readonly unreachable = new Set<string>();
  /** What the sign-in provider answers. */
  providerStatus = 200;
  /** Whether a database host is connected to the gateway. */
  hasHost = false;
  gateway: Gateway = (request) => this.#standIn(request);
  readonly #children = new Set<ChildProcess>();
  readonly #closing: (() => Promise<unknown>)[] = [];
  #env: Record<string, string> = {};

  static async open(): Promise<Operator> {
    const operator = new Operator();
    await operator.#connect();
    operator.release('first');
    return operator;
  }

  async close(): Promise<void> {
    for (const { pid } of this.#children) if (pid !== undefined) killGroup(pid);
    for (const close of this.#closing) await close();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Makes the artifacts of a small release. @param text of its Worker; one with `broken` does not answer */
  release(text: string, migrations: Record<string, string> = {}): void {
    mkdirSync(join(this.artifacts, 'console'), { recursive: true });
    mkdirSync(join(this.artifacts, 'migrations'), { recursive: true });
    writeFileSync(join(this.artifacts, 'worker.mjs'), `export default { fetch() {} }; // ${text}\n`);
    writeFileSync(join(this.artifacts, 'console/index.html'), '<p>console</p>');
    const all = {
      '0000_first.sql':
        'CREATE TABLE `a` (`id` text);\n--> statement-breakpoint\nCREATE TABLE `b` (`id` text);',
      ...migrations,
    };
    for (const [name, sql] of Object.entries(all))
      writeFileSync(join(this.artifacts, 'migrations', name), sql);
  }

  /** Takes the artifacts of this checkout. */
  async releaseCheckout(): Promise<void> {
    rmSync(this.artifacts, { recursive: true });
    mkdirSync(this.artifacts);
    const sources = {
      'worker.mjs': await PREPARED.worker(),
      console: await PREPARED.console(),
      migrations: join(ROOT, 'edge/database/migrations'),
    };
    for (const [name, path] of Object.entries(sources))
      cpSync(path, join(this.artifacts, name), { recursive: true });
  }

  /** Starts `npm run deploy --` with these words, as the leader of a process group without a terminal. */
  start(words: readonly string[], env: Record<string, string> = {}): { pid: number; ended: Promise<Ended> } {
    const places = ['--folder', this.record];
    const child = spawn(
      process.execPath,
      ['--use-env-proxy', join(ROOT, 'operator/main.ts'), ...words, ...places],
      { cwd: this.folder, env: { ...this.#env, ...env }, stdio: ['ignore', 'pipe', 'pipe'], detached: true },
    );
    this.#children.add(child);
    const texts = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr'] as const)
      child[name].setEncoding('utf8').on('data', (text: string) => {
        texts[name] += text;
      });
    const ended = once(child, 'close').then(([code]) => {
      this.#children.delete(child);
      return { code, ...texts };
    });
    return { pid: child.pid ?? 0, ended };
  }

  /** As `run`, with the command lines of all processes that it starts. */
  async runWatched(...words: string[]): Promise<Ended & { commandLines: string[] }> {
    const lines = new Set<string>();
    /** Processes that it has not started. */
    const others = new Set(readdirSync('/proc'));
    const { ended } = this.start(words);
    let isRunning = true;
    const watching = (async () => {
      for (; isRunning; await sleep(WATCH_MS))
        for (const pid of readdirSync('/proc').filter((name) => /^\d/.test(name) && !others.has(name)))
          try {
            const environment = readFileSync(`/proc/${pid}/environ`, 'utf8');
            if (environment.includes(this.folder)) lines.add(readFileSync(`/proc/${pid}/cmdline`, 'utf8'));
            // It is empty while a program is being loaded.
            else if (environment !== '') others.add(pid);
          } catch {
            // It has ended.
          }
    })();
    const result = await ended;
    isRunning = false;
    await watching;
    return { ...result, commandLines: [...lines] };
  }

  run(...words: string[]): Promise<Ended> {
    return this.start(words).ended;
  }

  /** The words of a first run. @param changes flags with other values; undefined leaves one out */
  words(changes: Record<string, string | undefined> = {}): string[] {
    const flags = {
      ...FLAGS,
      'secrets-file': this.secretsFile,
      artifacts: this.artifacts,
      wait: '60',
      ...changes,
    };
    const given = Object.entries(flags).filter((entry): entry is [string, string] => entry[1] !== undefined);
    const settings = [`MAIL_API_URL=https://${MAIL}/send`, `IDP_URL=https://${PROVIDER}`];
    return [...given.flatMap(flag), ...settings.flatMap((setting) => ['--var', setting])];
  }

  /** A run that has to succeed. @returns what it printed as JSON */
  async deploy(...words: string[]): Promise<{ done: { step: string }[]; version_id: string }> {
    const ended = await this.run(...words, '--artifacts', this.artifacts, '--json');
    if (ended.code !== 0) throw new Error(`${ended.code}: ${ended.stderr}`);
    return JSON.parse(ended.stdout);
  }

  readRecord(): Record<string, unknown> {
    return JSON.parse(readFileSync(join(this.record, 'deployment.json'), 'utf8'));
  }

  /** The copy of the secrets by name. */
  readSecrets(): Record<string, string> {
    const lines = readFileSync(this.secretsFile, 'utf8').split('\n');
    const entries = lines.filter((line) => line.includes('=') && !line.startsWith('#'));
    return Object.fromEntries(
      entries.map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
    );
  }

  async #connect(): Promise<void> {
    const api = await this.cloudflare.listen();
    this.#closing.push(() => this.cloudflare.close());
    const { certFile, keyFile } = await certificate();
    const server = createServer(
      { cert: readFileSync(certFile), key: readFileSync(keyFile) },
      (incoming, outgoing) => {
        void (async () => {
          const chunks: Buffer[] = [];
          for await (const chunk of incoming) chunks.push(chunk as Buffer);
          const url = `https://${incoming.headers.host}${incoming.url}`;
          const headers = Object.entries(incoming.headers).map(
            ([name, value]) => [name, String(value)] as [string, string],
          );
          const method = incoming.method ?? 'GET';
          const body = method === 'GET' || method === 'HEAD' ? null : new Uint8Array(Buffer.concat(chunks));
          const response = await this.#answer(new Request(url, { method, headers, body }));
          outgoing.writeHead(response.status, Object.fromEntries(response.headers));
          outgoing.end(Buffer.from(await response.arrayBuffer()));
        })();
      },
    );
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    // Every name leads to the server above.
    const proxy = createProxy().on('connect', (request, client) => {
      if (this.unreachable.has(request.url?.split(':')[0] ?? '')) {
        client.end('HTTP/1.1 502 Bad Gateway\r\n\r\n');
        return;
      }
      const socket = connect(port, '127.0.0.1');
      client.write('HTTP/1.1 200 OK\r\n\r\n');
      client.pipe(socket).pipe(client);
      for (const end of [client, socket])
        end.on('error', () => [client, socket].map((each) => each.destroy()));
    });
    proxy.listen(0, '127.0.0.1');
    await once(proxy, 'listening');
    this.#closing.push(async () => {
      server.closeAllConnections();
      proxy.closeAllConnections();
      server.close();
      proxy.close();
    });
    this.#env = {
      PATH: process.env.PATH ?? '',
      HOME: this.folder,
      TMPDIR: this.folder,
      CLOUDFLARE_API_BASE_URL: api,
      CLOUDFLARE_API_TOKEN: TOKEN,
      HTTPS_PROXY: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`,
      NO_PROXY: '127.0.0.1,localhost',
      NODE_EXTRA_CA_CERTS: certFile,
      NODE_COMPILE_CACHE: await oncePerRun('wrangler-compiled', async (path) => mkdirSync(path)),
    };
  }

  #answer(request: Request): Promise<Response> | Response {
    const { hostname, searchParams } = new URL(request.url);
    if (hostname === RESOLVER) {
      const isNamed = this.named.has(searchParams.get('name') ?? '');
      return Response.json(isNamed ? { Status: 0, Answer: [{ data: '192.0.2.1' }] } : { Status: 3 });
    }
    if (hostname === MAIL) return Response.json({});
    if (hostname === PROVIDER) return Response.json({}, { status: this.providerStatus });
    const worker = this.cloudflare.domains.get(hostname);
    return worker === undefined ? new Response(null, { status: 530 }) : this.gateway(request);
  }

  /** As the gateway answers, for releases whose Worker is never started. */
  async #standIn(request: Request): Promise<Response> {
    const version = this.cloudflare.serving(this.cloudflare.domains.get(ADDRESS) ?? '');
    const code = [...version.modules.values()].join('');
    if (code.includes('broken')) return new Response('error', { status: 500 });
    const { pathname } = new URL(request.url);
    if (pathname === '/readyz')
      return this.hasHost
        ? Response.json({ status: 'ready' })
        : Response.json({ error: 'HOST_UNAVAILABLE' }, { status: 503 });
    const secret = version.bindings.find(({ name }) => name === 'PLATFORM_SECRET')?.text;
    if (request.headers.get('authorization') !== `Bearer ${secret}`)
      return Response.json({ error: 'UNAUTHENTICATED' }, { status: 401 });
    if (pathname !== '/platform/v1/tenants') return Response.json({ hosts: [], next_cursor: null });
    if (this.invitations.length > 0) return Response.json({ error: 'TENANT_EXISTS' }, { status: 409 });
    this.cloudflare.beforeWrite('invite');
    this.invitations.push(await request.json());
    return Response.json({}, { status: 201 });
  }
}

/** Ends a process and those that it has started. */
export function killGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}

/** For every name of the network, trusted by those who trust the file. */
async function certificate(): Promise<{ certFile: string; keyFile: string }> {
  const folder = await oncePerRun('operator-certificate', async (path) => {
    mkdirSync(path);
    const names = [ADDRESS, RESOLVER, MAIL, PROVIDER].map((name) => `DNS:${name}`).join(',');
    execFileSync(
      'openssl',
      [
        'req',
        '-x509',
        '-batch',
        '-nodes',
        '-newkey',
        'ec',
        '-pkeyopt',
        'ec_paramgen_curve:prime256v1',
        '-days',
        '2',
        '-subj',
        '/CN=operator',
        '-addext',
        `subjectAltName=${names}`,
        '-keyout',
        'key.pem',
        '-out',
        'cert.pem',
      ],
      { cwd: path, stdio: 'ignore' },
    );
  });
  return { certFile: join(folder, 'cert.pem'), keyFile: join(folder, 'key.pem') };
}
