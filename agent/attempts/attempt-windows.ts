import ipaddr from 'ipaddr.js';
import { isPlainAddress } from '../../shared/cidr.ts';
import { type AttemptScope, attemptsUntilBlock, type Block, blockKey } from '../blocks/stored-blocks.ts';

interface Window extends Block {
  /** When it ends, in milliseconds of the caller's clock. */
  end: number;
  count: number;
}

/** What has reached its limit: a branch and a network, or (null) a branch and all networks together. */
export interface FullWindow extends Block {
  /** In milliseconds of the caller's clock. */
  end: number;
  count: number;
}

/**
 * Counted networks of all branches. A flood from more of them makes the agent forget the oldest below the
 * limit.
 */
const NETWORKS_MAX = 50_000;

/**
 * Counts attempts per branch, and with the scope `address` also per branch and network. A window opens with its
 * first attempt and has a fixed length. The count of a branch bounds guesses that are distributed over many
 * networks.
 */
export class AttemptWindows {
  readonly #scope: AttemptScope;
  readonly #limitOf: (branchId: string) => number;
  readonly #length: number;
  readonly #max: number;
  /** By `blockKey`, the oldest first. */
  readonly #networks = new Map<string, Window>();
  readonly #branches = new Map<string, Window>();

  /**
   * @param limitOf the limit of this branch at any time, for what the scope counts together
   * @param length of a window, in milliseconds
   * @param max networks that are counted at a time
   */
  constructor(
    scope: AttemptScope,
    limitOf: (branchId: string) => number,
    length: number,
    max = NETWORKS_MAX,
  ) {
    this.#scope = scope;
    this.#limitOf = limitOf;
    this.#length = length;
    this.#max = max;
  }

  /**
   * Counts one attempt.
   * @param address network of the client; null when it is unknown
   * @returns whether it is the last within a limit
   */
  count(branch_id: string, address: string | null, now: number): boolean {
    const isByAddress = this.#scope === 'address' && address !== null;
    const windows = [{ branch_id, address: null }, ...(isByAddress ? [{ branch_id, address }] : [])];
    const reached = windows.map((block) => {
      const window = this.#open(block, now);
      window.count += 1;
      return window.count === this.limitOf(block);
    });
    return reached.includes(true);
  }

  /** True once a network or its branch has reached the limit. */
  isFull(branch_id: string, address: string | null, now: number): boolean {
    const isByAddress = this.#scope === 'address' && address !== null;
    return [{ branch_id, address: null }, ...(isByAddress ? [{ branch_id, address }] : [])].some((block) => {
      const window = (block.address === null ? this.#branches : this.#networks).get(blockKey(block));
      return window !== undefined && window.end > now && window.count >= this.limitOf(block);
    });
  }

  /** The attempts in one window that are accepted. A raised limit opens a network before its window ends. */
  limitOf({ branch_id, address }: Block): number {
    return attemptsUntilBlock(this.#scope, address, this.#limitOf(branch_id));
  }

  /** Continues a window at its limit that another process left. @param end at most one length from now */
  resume(block: Block, now: number, end: number): void {
    const window = this.#open(block, now);
    window.end = Math.min(end, now + this.#length);
    window.count = this.limitOf(block);
  }

  /** The windows at their limit, by `blockKey`. */
  atLimit(now: number): Map<string, FullWindow> {
    const full = new Map<string, FullWindow>();
    for (const windows of [this.#branches, this.#networks]) {
      for (const [key, { branch_id, address, end, count }] of windows) {
        if (end <= now) windows.delete(key);
        else if (count >= this.limitOf({ branch_id, address }))
          full.set(key, { branch_id, address, end, count });
      }
    }
    return full;
  }

  #open(block: Block, now: number): Window {
    const isBranch = block.address === null;
    const windows = isBranch ? this.#branches : this.#networks;
    const key = blockKey(block);
    const open = windows.get(key);
    if (open && open.end > now) return open;
    const window = { ...block, end: now + this.#length, count: 0 };
    // A deleted key moves to the end.
    windows.delete(key);
    windows.set(key, window);
    if (this.#networks.size > this.#max) this.#forgetOldest();
    return window;
  }

  /** A network at its limit stays, because it would be open again. */
  #forgetOldest() {
    for (const [key, window] of this.#networks) {
      if (window.count >= this.limitOf(window)) continue;
      this.#networks.delete(key);
      return;
    }
  }
}

/**
 * One client often has the whole /64 of an IPv6 address (RFC 6177), and could otherwise change its address at
 * will.
 */
const PREFIXES = { ipv4: 32, ipv6: 64 };

/** The network whose attempts are counted together, in canonical form; null when `text` is no address. */
export function clientNetwork(text: string): string | null {
  // A link-local address can have a zone, such as `fe80::1%eth0`.
  const address = text.replace(/%.*$/, '');
  if (!isPlainAddress(address)) return null;
  const parsed = ipaddr.process(address);
  const prefix = PREFIXES[parsed.kind()];
  const network =
    parsed.kind() === 'ipv4'
      ? parsed
      : ipaddr.IPv6.networkAddressFromCIDR(`${parsed.toNormalizedString()}/${prefix}`);
  return `${network}/${prefix}`;
}
