import { fatal, SqlRefusal } from './admit-client.ts';

/** How many sockets there are. A frame of each stays in memory until it is complete, so these also bound the memory. */
export const ROOM = {
  /** Connections that are not logged in. */
  handshakes: { ofHost: 160, ofNetwork: 40 },
  /** New connections of one network. TLS costs the agent a millisecond of each. */
  begun: { perSecond: 50, burst: 200 },
  /** Sockets that are logged in. The pooler and PostgreSQL have limits of their own. */
  open: { ofHost: 256, ofTenant: 64, ofBranch: 48 },
} as const;

/** Networks whose new connections are counted. */
const NETWORKS_MAX = 50_000;

/** Counts by key, without those that are zero. */
class Counts {
  readonly #counts = new Map<string, number>();
  #sum = 0;

  get sum(): number {
    return this.#sum;
  }

  of(key: string): number {
    return this.#counts.get(key) ?? 0;
  }

  /** @returns a function that takes it back, once */
  add(key: string): () => void {
    this.#change(key, 1);
    let isBack = false;
    return () => {
      if (!isBack) this.#change(key, -1);
      isBack = true;
    };
  }

  #change(key: string, by: number): void {
    const count = this.of(key) + by;
    this.#sum += by;
    if (count > 0) this.#counts.set(key, count);
    else this.#counts.delete(key);
  }
}

/** SQLSTATE `too_many_connections`. */
const tooMany = (what: string) =>
  new SqlRefusal(
    fatal('53300', `too many WebSocket connections of ${what}: close some, or use SQL over HTTP`),
  );

/** Admits sockets by their numbers. */
export class SocketRoom {
  readonly #handshakes = new Counts();
  readonly #branches = new Counts();
  readonly #tenants = new Counts();
  /** When the allowance of each network is full again, in milliseconds; the oldest first. */
  readonly #begun = new Map<string, number>();

  /** @returns a function that ends the handshake; null: the connection has to be closed */
  beginHandshake(network: string, now: number): (() => void) | null {
    const { ofHost, ofNetwork } = ROOM.handshakes;
    if (!this.#takeAllowance(network, now)) return null;
    if (this.#handshakes.sum >= ofHost || this.#handshakes.of(network) >= ofNetwork) return null;
    return this.#handshakes.add(network);
  }

  #takeAllowance(network: string, now: number): boolean {
    const { perSecond, burst } = ROOM.begun;
    const fullAt = Math.max(now, this.#begun.get(network) ?? 0) + 1_000 / perSecond;
    if (fullAt - now > (burst * 1_000) / perSecond) return false;
    this.#begun.delete(network);
    this.#begun.set(network, fullAt);
    for (const [oldest, at] of this.#begun) {
      if (at > now && this.#begun.size <= NETWORKS_MAX) break;
      this.#begun.delete(oldest);
    }
    return true;
  }

  /** @returns a function to call when the socket has ended @throws SqlRefusal */
  open(tenant: string, branchId: string): () => void {
    const { ofHost, ofTenant, ofBranch } = ROOM.open;
    if (this.#branches.of(branchId) >= ofBranch) throw tooMany('this branch');
    if (this.#tenants.of(tenant) >= ofTenant) throw tooMany('this tenant');
    if (this.#branches.sum >= ofHost) throw tooMany('this host');
    const leave = [this.#branches.add(branchId), this.#tenants.add(tenant)];
    return () => {
      for (const each of leave) each();
    };
  }
}
