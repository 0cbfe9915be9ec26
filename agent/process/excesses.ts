import type { BlockReason } from '../../shared/block.ts';
import { HostError } from './host-error.ts';

/** What a watchdog has ended the processes of a database for, in the words of a message. */
const WORDS: Record<Exclude<BlockReason, 'attempts'> | 'growth', string> = {
  autovacuum: 'takes a worker of autovacuum for itself',
  connections: 'takes too many connections',
  disk: 'takes the rest of the disk',
  files: 'makes too many files',
  growth: 'writes more than a copy may hold',
  locks: 'takes too many locks',
  transaction_ids: 'takes too many transaction ids, or keeps one for too long',
};

export type Excess = keyof typeof WORDS;

/**
 * Databases whose processes a watchdog has ended, although no client is to blame: an operation works there, or a worker
 * of a subscription. What has started these processes stops, and says why.
 */
export class Excesses {
  readonly #found = new Map<string, Excess>();

  note(database: string, excess: Excess): void {
    this.#found.set(database, excess);
  }

  /**
   * Runs what works in the database.
   * @param what runs code of the tenant there, as the subject of a message
   * @throws HostError STATEMENT_REFUSED with the reason, if a watchdog has ended it
   */
  async during<T>(database: string, what: string, action: () => Promise<T>): Promise<T> {
    try {
      const result = await action();
      this.#found.delete(database);
      return result;
    } catch (error) {
      const excess = this.take(database);
      throw excess === null ? error : new HostError('STATEMENT_REFUSED', `${what} ${excess}`);
    }
  }

  /** @returns what the tenant's code does, once for each time that it was noted; null if nothing was */
  take(database: string): string | null {
    const excess = this.#found.get(database);
    this.#found.delete(database);
    return excess === undefined ? null : WORDS[excess];
  }
}
