import type { BlockReason } from '../../shared/block.ts';
import { singleFlight } from '../../shared/single-flight.ts';
import type { Pool } from '../postgres/connect.ts';
import { type Block, type Blocker, readBlocks, storeBlocks } from './stored-blocks.ts';

const RETRY_AFTER_MS = 1_000;

/** What it takes to block branches. */
export interface BlockingHost {
  postgres: Pool;
  rules: {
    /** Makes both servers reject exactly these of one blocker, without waiting until they do. */
    block: (blocker: Blocker, blocks: readonly Block[]) => Promise<void>;
    /** Resolves when both servers apply what is stored. */
    sync: () => Promise<void>;
  };
}

export interface TimedBlock extends Block {
  reason: BlockReason;
  /** Milliseconds of the source's clock. */
  end: number;
}

/** Decides what is blocked. */
export interface BlockSource {
  readonly blocker: Blocker;
  /** A steady clock in milliseconds. */
  readonly now: () => number;
  /** The blocks of this time. */
  wanted: () => readonly TimedBlock[];
  /** Continues the blocks that an earlier process left. */
  resume: (left: readonly TimedBlock[]) => void;
  /** Called when both servers apply a change. */
  onApplied: (begun: readonly TimedBlock[], ended: readonly TimedBlock[]) => void;
  /** Called after each attempt with the error that prevented it, or null. */
  onTrouble: (trouble: unknown) => void;
}

type BlocksByKey = ReadonlyMap<string, TimedBlock>;

/**
 * Makes both servers apply the blocks of a source. They are stored in the agent's tables: a control tool that
 * syncs the rules preserves them, and the agent's next process ends them in time.
 */
export class BlockEnforcer {
  readonly #host: BlockingHost;
  readonly #source: BlockSource;
  /** What both servers are known to apply; null before those of an earlier process are known. */
  #applied: BlocksByKey | null = null;
  /** Whether the servers may apply something else, because an attempt to change it has failed. */
  #isUncertain = false;
  #rejecting: Promise<void> = Promise.resolve();
  #retryAt = 0;

  constructor(host: BlockingHost, source: BlockSource) {
    this.#host = host;
    this.#source = source;
  }

  /** Rejects clients before a sync in progress ends; `enforce` has to follow. */
  reject(): Promise<void> {
    const { blocker } = this.#source;
    const reject = () => this.#host.rules.block(blocker, this.#source.wanted());
    this.#rejecting = this.#rejecting.then(reject, reject);
    return this.#rejecting;
  }

  /** Makes the servers apply the wanted blocks, and no others of this source. Never throws. */
  readonly enforce = singleFlight(async () => {
    if (performance.now() < this.#retryAt) return;
    try {
      this.#applied ??= await this.#takeOver();
      for (;;) {
        const wanted = byKey(this.#source.wanted());
        if (!this.#isUncertain && haveSameEnds(this.#applied, wanted)) break;
        await this.#apply(wanted);
        this.#source.onApplied(without(wanted, this.#applied), without(this.#applied, wanted));
        this.#applied = wanted;
        this.#isUncertain = false;
      }
      this.#source.onTrouble(null);
    } catch (error) {
      this.#isUncertain = true;
      this.#retryAt = performance.now() + RETRY_AFTER_MS;
      this.#source.onTrouble(error);
    }
  });

  async #takeOver(): Promise<BlocksByKey> {
    const { blocker, now } = this.#source;
    const stored = await readBlocks(this.#host.postgres);
    const left = stored
      .filter(({ reason }) => (reason === 'attempts') === (blocker === 'attempts'))
      .map(({ ends_in, ...block }) => ({ ...block, end: now() + ends_in }));
    this.#source.resume(left);
    this.#isUncertain = left.length > 0;
    return byKey(left);
  }

  async #apply(wanted: BlocksByKey): Promise<void> {
    const { blocker, now } = this.#source;
    const { postgres, rules } = this.#host;
    await this.reject();
    const blocks = [...wanted.values()].map(({ end, ...block }) => ({ ...block, ends_in: end - now() }));
    await storeBlocks(postgres, blocker, blocks);
    await rules.sync();
  }
}

const byKey = (blocks: readonly TimedBlock[]): BlocksByKey =>
  new Map(blocks.map((block) => [`${block.branch_id} ${block.address} ${block.reason}`, block]));

const without = (blocks: BlocksByKey, others: BlocksByKey) =>
  [...blocks].flatMap(([key, block]) => (others.has(key) ? [] : [block]));

const haveSameEnds = (one: BlocksByKey, other: BlocksByKey) =>
  one.size === other.size && [...one].every(([key, { end }]) => other.get(key)?.end === end);
