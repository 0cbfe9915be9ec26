import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { devFolder } from '../../../dev/stack/dev-folder.ts';
import { connect as connectTo } from '../database.ts';
import type { Cut } from '../tcp-proxy.ts';

interface Relayed {
  host: string | null;
  sockets: [Socket, Socket];
}

const HOST_ID = /host_id[=":\s]+([0-9a-f-]{36})/;

/** Relays what the agents of several hosts send to one gateway, and can cut off each of them. */
export class GatewayProxy {
  readonly #server: Server;
  readonly #relayed = new Set<Relayed>();
  /** By host id. */
  readonly #cuts = new Map<string, Cut>();

  private constructor(target: number) {
    this.#server = createServer((socket) => {
      const there = connect(target, '127.0.0.1').pause();
      const relayed: Relayed = { host: null, sockets: [socket, there] };
      this.#relayed.add(relayed);
      for (const one of relayed.sockets) {
        one.on('error', () => {});
        one.on('close', () => {
          this.#relayed.delete(relayed);
          for (const other of relayed.sockets) other.destroy();
        });
      }
      let received = '';
      const identify = (chunk: Buffer) => {
        received += chunk.toString('latin1');
        const [, host] = received.match(HOST_ID) ?? [];
        if (host === undefined) return;
        relayed.host = host;
        socket.off('data', identify).pause();
        this.#apply(relayed);
        if (this.#cuts.has(host)) return;
        there.write(Buffer.from(received, 'latin1'));
        socket.pipe(there);
        there.pipe(socket);
      };
      socket.on('data', identify);
    });
  }

  static async start(target: number): Promise<GatewayProxy> {
    const proxy = new GatewayProxy(target);
    proxy.#server.listen(0, '127.0.0.1');
    await once(proxy.#server, 'listening');
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  cut(host: string, cut: Cut): void {
    this.#cuts.set(host, cut);
    for (const relayed of this.#relayed) if (relayed.host === host) this.#apply(relayed);
  }

  mend(): void {
    const hosts = [...this.#cuts.keys()];
    this.#cuts.clear();
    for (const { host, sockets } of this.#relayed)
      if (host !== null && hosts.includes(host)) for (const socket of sockets) socket.destroy();
  }

  stop(): void {
    for (const { sockets } of this.#relayed) for (const socket of sockets) socket.destroy();
    this.#server.close();
  }

  #apply({ host, sockets }: Relayed): void {
    const cut = host === null ? undefined : this.#cuts.get(host);
    for (const socket of sockets)
      if (cut === 'refusing') socket.destroy();
      else if (cut === 'silent') socket.unpipe().pause();
  }
}

const memberFile = (stateDir: string) => join(stateDir, 'member.json');

/** What the agent of a host has stored of its role. */
export const memberOf = ({ stateDir }: { stateDir: string }) =>
  JSON.parse(readFileSync(memberFile(stateDir), 'utf8'));

export const storeMember = ({ stateDir }: { stateDir: string }, member: object): void =>
  writeFileSync(memberFile(stateDir), JSON.stringify(member));

/** How often the gateway has promoted a host. It may do so by itself, so a test cannot count it. */
export const promotionsOf = ({ devDir }: { devDir: string }): number =>
  readFileSync(join(devFolder(devDir).logs, 'gateway.log'), 'utf8').split('"host.promoted"').length - 1;

/** Makes a standby that is not started yet reach its primary at another port. */
export function followThrough(stateDir: string, port: string): void {
  const conf = join(stateDir, 'standby.conf');
  writeFileSync(conf, readFileSync(conf, 'utf8').replace(/port=''\d+''/, `port=''${port}''`));
  const member = memberOf({ stateDir });
  storeMember({ stateDir }, { ...member, primary: { ...member.primary, direct_port: Number(port) } });
}

/** One commit that a host has confirmed, with times of this machine's one clock. */
export interface Commit {
  host: string;
  /** Of its row. */
  id: number;
  issuedAt: number;
  confirmedAt: number;
}

/** The table of the rows that `Writers` commit. */
export const WRITTEN = 'create table if not exists written (id bigint primary key)';

/** Clients of one database that commit at each host for as long as that accepts it, whatever its role is. */
export class Writers {
  readonly commits: Commit[] = [];
  readonly #everyMs: number;
  readonly #ended = new AbortController();
  readonly #running: Promise<void>[];
  #next = 1;

  /** @param url of the database at any of the hosts. @param hosts the port of each host, by its name */
  constructor(url: string, hosts: Readonly<Record<string, number>>, everyMs: number) {
    this.#everyMs = everyMs;
    this.#running = Object.entries(hosts).map(([host, port]) => {
      const own = new URL(url);
      own.port = String(port);
      return this.#write(host, own.href);
    });
  }

  async #write(host: string, url: string): Promise<void> {
    const { signal } = this.#ended;
    while (!signal.aborted) {
      let client: pg.Client | null = null;
      try {
        client = await connectTo(url, { connectionTimeoutMillis: 2_000, query_timeout: 5_000 });
        while (!signal.aborted) {
          const id = this.#next;
          this.#next += 1;
          const issuedAt = performance.now();
          await client.query('insert into written values ($1)', [id]);
          this.commits.push({ host, id, issuedAt, confirmedAt: performance.now() });
          await sleep(this.#everyMs);
        }
      } catch {
        await sleep(50);
      } finally {
        void client?.end().catch(() => {});
      }
    }
  }

  async stop(): Promise<void> {
    this.#ended.abort();
    await Promise.all(this.#running);
  }
}

/**
 * What must not be: that two hosts accept commits in the same period. Sorted by their confirmation, the commits of each period
 * are of one host, and each begins after the last one of the period before.
 * @param promotions that took place meanwhile; each begins at most one period
 */
export function writerFaults(commits: readonly Commit[], promotions: number): string[] {
  const faults: string[] = [];
  const sorted = commits.toSorted((one, other) => one.confirmedAt - other.confirmedAt);
  let periods = sorted.length > 0 ? 1 : 0;
  let latest = Number.NEGATIVE_INFINITY;
  let ofOthers = Number.NEGATIVE_INFINITY;
  for (const [at, commit] of sorted.entries()) {
    const before = sorted[at - 1];
    if (before && before.host !== commit.host) {
      periods += 1;
      ofOthers = latest;
    }
    if (commit.issuedAt <= ofOthers)
      faults.push(`${commit.host} accepted a commit before the other host had ended`);
    latest = commit.confirmedAt;
  }
  if (periods > promotions + 1) faults.push(`${periods} periods with ${promotions} promotions`);
  return faults;
}
