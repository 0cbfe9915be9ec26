import { HostError } from '../servers/host-error.ts';

/**
 * How many row operations run, and how many are admitted, running or waiting. A tenant's slow view or trigger delays
 * that branch alone, and never uses up the link, which carries 64 calls.
 */
const LIMITS = { runningOfBranch: 4, admittedOfBranch: 8, running: 16, admitted: 32 };
const WAIT_MS = 2_000;

interface Waiter {
  branchId: string;
  start: () => void;
}

/** Limits concurrent row operations. */
export class Slots {
  /** Branch ids of the operations that run, and of all that run or wait. */
  readonly #running: string[] = [];
  readonly #admitted: string[] = [];
  readonly #waiters: Waiter[] = [];

  /**
   * Waits for a slot.
   * @returns a function that frees the slot
   * @throws HostError HOST_BUSY, immediately when too many operations wait already, otherwise after the wait
   */
  async enter(branchId: string): Promise<() => void> {
    const ofBranch = count(this.#admitted, branchId);
    if (this.#admitted.length >= LIMITS.admitted || ofBranch >= LIMITS.admittedOfBranch) throw busy();
    this.#admitted.push(branchId);
    if (!this.#hasSlot(branchId)) await this.#wait(branchId);
    else this.#running.push(branchId);
    return () => this.#leave(branchId);
  }

  #hasSlot(branchId: string): boolean {
    return this.#running.length < LIMITS.running && count(this.#running, branchId) < LIMITS.runningOfBranch;
  }

  #wait(branchId: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const timeout = setTimeout(() => {
        remove(this.#waiters, waiter);
        remove(this.#admitted, branchId);
        reject(busy());
      }, WAIT_MS);
      const start = () => {
        clearTimeout(timeout);
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
    remove(this.#admitted, branchId);
    this.#waiters.find((waiter) => this.#hasSlot(waiter.branchId))?.start();
  }
}

const busy = () => new HostError('HOST_BUSY', 'too many row operations are under way');

const count = (list: readonly string[], wanted: string) => list.filter((item) => item === wanted).length;

function remove<T>(list: T[], item: T): void {
  const index = list.indexOf(item);
  if (index !== -1) list.splice(index, 1);
}
