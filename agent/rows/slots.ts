import { HostError } from '../servers/host-error.ts';

/**
 * How many row operations run, and how many more may wait for them to end. What a tenant's own view or trigger
 * holds up is held up for that branch alone, and never takes the whole link, which carries 64 calls.
 */
const LIMITS = { runningOfBranch: 4, heldOfBranch: 8, running: 16, held: 32 };
const WAIT_MS = 2_000;

interface Waiter {
  branchId: string;
  start: () => void;
}

/** Places for row operations, which are given back with the function that `enter` returns. */
export class Slots {
  /** Operations by branch that run; and all that run or wait. */
  readonly #running: string[] = [];
  readonly #held: string[] = [];
  readonly #waiters: Waiter[] = [];

  /**
   * @param waits whether to wait when no place is free
   * @throws HostError HOST_BUSY at once when too many wait already, otherwise after a wait
   */
  async enter(branchId: string, waits = true): Promise<() => void> {
    if (this.#held.length >= LIMITS.held || count(this.#held, branchId) >= LIMITS.heldOfBranch) throw busy();
    if (!waits && !this.#hasPlace(branchId)) throw busy();
    this.#held.push(branchId);
    if (!this.#hasPlace(branchId)) await this.#wait(branchId);
    else this.#running.push(branchId);
    return () => this.#leave(branchId);
  }

  #hasPlace(branchId: string): boolean {
    return this.#running.length < LIMITS.running && count(this.#running, branchId) < LIMITS.runningOfBranch;
  }

  #wait(branchId: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const giveUp = setTimeout(() => {
        remove(this.#waiters, waiter);
        remove(this.#held, branchId);
        reject(busy());
      }, WAIT_MS);
      const start = () => {
        clearTimeout(giveUp);
        remove(this.#waiters, waiter);
        this.#running.push(branchId);
        resolve();
      };
      const waiter = { branchId, start };
      this.#waiters.push(waiter);
    });
  }

  #leave(branchId: string): void {
    remove(this.#running, branchId);
    remove(this.#held, branchId);
    this.#waiters.find((waiter) => this.#hasPlace(waiter.branchId))?.start();
  }
}

const busy = () => new HostError('HOST_BUSY', 'too many row operations are under way');

const count = (list: readonly string[], wanted: string) => list.filter((item) => item === wanted).length;

function remove<T>(list: T[], item: T): void {
  const place = list.indexOf(item);
  if (place !== -1) list.splice(place, 1);
}
