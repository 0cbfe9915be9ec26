import type { RuleSync } from '../access/sync-rules.ts';
import {
  type BlockedBranch,
  type GuardReason,
  readBlockedBranches,
  writeGuardedBranches,
} from '../blocks/stored-blocks.ts';
import type { Pool } from '../postgres/connect.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import type { GuardedBranch } from './guard.ts';

interface BlockingHost {
  postgres: Pool;
  rules: RuleSync;
}

/** How long a branch stays blocked after the last time that a watchdog found something. Milliseconds. */
export const BLOCK_FOR = 60_000;
/** While the cause lasts, a block is extended when less than this is left. Milliseconds. */
const EXTEND_BELOW = 30_000;
const RETRY_AFTER_MS = 1_000;

type Key = `${string} ${GuardReason}`;

interface Block {
  branch_id: string;
  reason: GuardReason;
  /** In milliseconds of the monotonic clock. */
  end: number;
}

const keyOf = ({ branch_id, reason }: Pick<Block, 'branch_id' | 'reason'>): Key => `${branch_id} ${reason}`;

/**
 * The branches that the watchdogs block. Both servers reject their connections, and the pooler drops their clients.
 * They are stored in the agent's tables: a control tool that syncs the rules leaves them blocked, and the agent's next
 * process continues.
 */
export class Blocks {
  readonly #host: BlockingHost;
  readonly #log: Log;
  readonly #now: () => number;
  readonly #troubles: TroubleLog;
  readonly #blocks = new Map<Key, Block>();
  /** Blocks that both servers are known to apply; null before those of an earlier process are known. */
  #applied: Map<Key, Block> | null = null;
  #isStored = true;
  #enforcing: Promise<void> | null = null;
  #retryAt = 0;

  /** @param now a steady clock of the blocks, in milliseconds */
  constructor(host: BlockingHost, log: Log, now: () => number = () => performance.now()) {
    this.#host = host;
    this.#log = log;
    this.#now = now;
    this.#troubles = new TroubleLog(log);
  }

  /** Blocks a branch, or extends its block. @param detail what was found, for the log */
  block({ branch_id }: GuardedBranch, reason: GuardReason, detail: Record<string, unknown>): void {
    const key = keyOf({ branch_id, reason });
    const end = this.#blocks.get(key)?.end;
    const now = this.#now();
    if (end !== undefined && end - now > EXTEND_BELOW) return;
    this.#blocks.set(key, { branch_id, reason, end: now + BLOCK_FOR });
    this.#isStored = false;
    if (end === undefined) this.#log('guard.blocked', { branch_id, reason, ...detail });
  }

  has({ branch_id }: GuardedBranch): boolean {
    return [...this.#blocks.values()].some((block) => block.branch_id === branch_id);
  }

  /** Makes the servers reject the blocked branches, and no others. Never throws. */
  enforce(): Promise<void> {
    this.#enforcing ??= this.#enforceOnce().finally(() => {
      this.#enforcing = null;
    });
    return this.#enforcing;
  }

  async #enforceOnce(): Promise<void> {
    if (performance.now() < this.#retryAt) return;
    try {
      this.#applied ??= await this.#takeOver();
      for (this.#forgetEnded(); !this.#isStored; this.#forgetEnded()) await this.#apply();
      if (this.#troubles.clearAll()) this.#log('guard.blocks_applied');
    } catch (error) {
      this.#isStored = false;
      this.#retryAt = performance.now() + RETRY_AFTER_MS;
      this.#troubles.report('guard.blocks_not_applied', 'blocks', error);
    }
  }

  /** Continues the blocks that an earlier process left. */
  async #takeOver(): Promise<Map<Key, Block>> {
    const left = await readBlockedBranches(this.#host.postgres);
    const blocks = left.map(({ ends_in, ...block }) => ({ ...block, end: this.#now() + ends_in }));
    for (const block of blocks) if (!this.#blocks.has(keyOf(block))) this.#blocks.set(keyOf(block), block);
    if (left.length > 0) this.#isStored = false;
    return new Map(blocks.map((block) => [keyOf(block), block]));
  }

  async #apply(): Promise<void> {
    this.#isStored = true;
    const wanted = new Map(this.#blocks);
    await this.#host.rules.block(
      'guard',
      [...wanted.values()].map(({ branch_id }) => ({ branch_id, address: null })),
    );
    await writeGuardedBranches(
      this.#host.postgres,
      [...wanted.values()].map((block) => this.#withTimeLeft(block)),
    );
    await this.#host.rules.sync();
    for (const [key, { branch_id, reason }] of this.#applied ?? [])
      if (!wanted.has(key)) this.#log('guard.unblocked', { branch_id, reason });
    this.#applied = wanted;
  }

  #forgetEnded() {
    for (const [key, { end }] of this.#blocks) {
      if (end > this.#now()) continue;
      this.#blocks.delete(key);
      this.#isStored = false;
    }
  }

  #withTimeLeft({ branch_id, reason, end }: Block): Pick<BlockedBranch, 'branch_id' | 'reason' | 'ends_in'> {
    return { branch_id, reason, ends_in: end - this.#now() };
  }
}
