import type { Socket } from 'node:net';

const MB = 2 ** 20;

/** Bytes of replies that PostgreSQL may send for a tenant at once, and each second from then on. */
export const PACE = { burst: 16 * MB, perSecond: 4 * MB } as const;

/** A reply with at most so many bytes does not wait for long ones. */
const SHORT = 64 * 2 ** 10;

/** @see PACE */
interface Rate {
  burst: number;
  perSecond: number;
}

interface Taken {
  /** When the tenant has its whole burst again, in milliseconds. */
  filledAt: number;
  /** Sockets that are paused. */
  waiting: Set<Socket>;
}

/**
 * Reads the replies of each tenant no faster than its pace, those that began first before the others. One thread of the agent
 * writes the JSON of all tenants, on the processors of their databases.
 */
export class Pace {
  readonly #taken = new Map<string, Taken>();
  /** The order in which they have begun. */
  readonly #numbers = new WeakMap<Socket, number>();
  #count = 0;
  readonly #rate: Rate;

  constructor(rate: Rate = PACE) {
    this.#rate = rate;
  }

  limit(socket: Socket, tenant: string): void {
    this.#numbers.set(socket, this.#count++);
    let read = 0;
    socket.on('data', ({ length }: Buffer) => {
      read += length;
      if (!this.#take(tenant, length) || read <= SHORT) return;
      socket.pause();
      this.#wait(tenant, socket);
    });
    socket.once('close', () => this.#taken.get(tenant)?.waiting.delete(socket));
  }

  /** @returns whether the tenant has to wait */
  #take(tenant: string, bytes: number): boolean {
    const now = performance.now();
    for (const [other, { filledAt, waiting }] of this.#taken)
      if (filledAt <= now && waiting.size === 0) this.#taken.delete(other);
    const taken = this.#taken.get(tenant) ?? { filledAt: now, waiting: new Set() };
    this.#taken.set(tenant, taken);
    taken.filledAt = Math.max(now, taken.filledAt) + (bytes / this.#rate.perSecond) * 1000;
    return this.#owed(taken) > 0;
  }

  #wait(tenant: string, socket: Socket): void {
    const taken = this.#taken.get(tenant);
    if (!taken) return;
    if (taken.waiting.size === 0) setTimeout(() => this.#resume(taken), this.#owed(taken));
    taken.waiting.add(socket);
  }

  #resume(taken: Taken): void {
    const owed = this.#owed(taken);
    const { waiting } = taken;
    const numberOf = (socket: Socket) => this.#numbers.get(socket) ?? 0;
    const [first] = [...waiting].toSorted((a, b) => numberOf(a) - numberOf(b));
    if (owed === 0 && first) {
      waiting.delete(first);
      first.resume();
    }
    if (waiting.size > 0) setTimeout(() => this.#resume(taken), Math.max(owed, TURN_MS));
  }

  /** Milliseconds until the tenant may take more. */
  #owed({ filledAt }: Taken): number {
    const { burst, perSecond } = this.#rate;
    return Math.max(0, filledAt - performance.now() - (burst / perSecond) * 1000);
  }
}

/** The socket that was resumed has read by then, or has nothing to read. */
const TURN_MS = 5;
