import {
  BlockEnforcer,
  type BlockingHost,
  type BlockSource,
  type TimedBlock,
} from '../blocks/enforce-blocks.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import type { GuardedBranch, GuardReason } from './guard.ts';

/** How long a branch stays blocked after the last time that a watchdog found something. Milliseconds. */
export const BLOCK_FOR = 60_000;
/** While the cause lasts, a block is extended when less than this is left. Milliseconds. */
const EXTEND_BELOW = 30_000;

type Key = Pick<TimedBlock, 'branch_id' | 'reason'>;

const keyOf = ({ branch_id, reason }: Key) => `${branch_id} ${reason}`;

/**
 * The branches that the watchdogs block. Both servers reject their connections, and the pooler drops their
 * clients.
 */
export class GuardBlocks implements BlockSource {
  readonly blocker = 'guard';
  readonly now: () => number;
  readonly #log: Log;
  readonly #troubles: TroubleLog;
  readonly #blocks = new Map<string, TimedBlock>();
  readonly #enforcer: BlockEnforcer;

  /** @param now a steady clock of the blocks, in milliseconds */
  constructor(host: BlockingHost, log: Log, now: () => number = () => performance.now()) {
    this.now = now;
    this.#log = log;
    this.#troubles = new TroubleLog(log);
    this.#enforcer = new BlockEnforcer(host, this);
  }

  /** Blocks a branch, or extends its block. @param detail what was found, for the log */
  block({ branch_id }: GuardedBranch, reason: GuardReason, detail: Record<string, unknown>): void {
    const key = keyOf({ branch_id, reason });
    const end = this.#blocks.get(key)?.end;
    const now = this.now();
    if (end !== undefined && end - now > EXTEND_BELOW) return;
    this.#blocks.set(key, { branch_id, address: null, reason, end: now + BLOCK_FOR });
    if (end === undefined) this.#log('guard.blocked', { branch_id, reason, ...detail });
  }

  has({ branch_id }: GuardedBranch): boolean {
    return [...this.#blocks.values()].some((block) => block.branch_id === branch_id);
  }

  /** Makes the servers reject the blocked branches, and no others. Never throws. */
  enforce(): Promise<void> {
    return this.#enforcer.enforce();
  }

  wanted(): TimedBlock[] {
    for (const [key, { end }] of this.#blocks) if (end <= this.now()) this.#blocks.delete(key);
    return [...this.#blocks.values()];
  }

  resume(left: readonly TimedBlock[]): void {
    for (const block of left) if (!this.#blocks.has(keyOf(block))) this.#blocks.set(keyOf(block), block);
  }

  onApplied(_begun: readonly TimedBlock[], ended: readonly TimedBlock[]): void {
    for (const { branch_id, reason } of ended) this.#log('guard.unblocked', { branch_id, reason });
  }

  onTrouble(trouble: unknown): void {
    if (trouble !== null) this.#troubles.report('guard.blocks_not_applied', 'blocks', trouble);
    else if (this.#troubles.clearAll()) this.#log('guard.blocks_applied');
  }
}
