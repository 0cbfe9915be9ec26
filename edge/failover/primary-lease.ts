import { logEvent } from '../log.ts';
import type { promoteLapsed } from './promotion.ts';

/** The lease of a primary whose standby may take over without an operator, in the storage of the primary's link. */
export interface Lease {
  /** Generation of the record for which the lease was renewed last. */
  generation: number;
  /** Unix milliseconds of the last renewal. */
  renewedAt: number;
  /** Unix milliseconds: when the standby may take over. No later renewal brings it forward. */
  lapsesAt: number;
  /** Time from a renewal to `lapsesAt`, in milliseconds. */
  lasts: number;
  /**
   * - `ending`: a promotion is being decided; renewals are refused.
   * - `over`: the standby has taken over; records up to this generation are from before that.
   */
  state: 'running' | 'ending' | 'over';
}

/** Delay after a promotion that could not be decided. */
const RETRY_MS = 5_000;
/** An alarm that is this late shows that the gateway itself was away, so that nobody could renew. */
const LATE_MS = 15_000;

interface LeaseOptions {
  hostId: () => string;
  kv: SyncKvStorage;
  /** Sets the alarm of the object to this time, in Unix milliseconds, unless an earlier one is set. */
  wakeBy: (time: number) => Promise<void>;
  promote: (
    lease: { generation: number; silentMs: number },
    decide: () => boolean,
  ) => ReturnType<typeof promoteLapsed>;
}

/** Lets the standby take over when the lease of the primary was not renewed in time. */
export class PrimaryLease {
  readonly #options: LeaseOptions;

  constructor(options: LeaseOptions) {
    this.#options = options;
  }

  get #stored(): Lease | undefined {
    return this.#options.kv.get<Lease>('lease');
  }

  #store(lease: Lease): void {
    this.#options.kv.put<Lease>('lease', lease);
  }

  /** Returns whether the standby takes over, or has since the record of this generation. */
  #isReplaced(generation: number): boolean {
    const known = this.#stored;
    return known?.state === 'ending' || (known?.state === 'over' && generation <= known.generation);
  }

  /** @returns false: the standby takes over, so the lease is not renewed */
  async renew(generation: number, seconds: number): Promise<boolean> {
    if (this.#isReplaced(generation)) return false;
    const renewedAt = Date.now();
    const lasts = seconds * 1_000;
    // The host may not have heard yet that its leases are shorter now.
    const lapsesAt = Math.max(this.#stored?.lapsesAt ?? 0, renewedAt + lasts);
    this.#store({ generation, renewedAt, lapsesAt, lasts, state: 'running' });
    await this.#options.wakeBy(lapsesAt);
    return true;
  }

  /** Ends the lease of a host that needs none. @returns false: the standby takes over */
  drop(generation: number): boolean {
    if (this.#isReplaced(generation)) return false;
    if (this.#stored) this.#options.kv.delete('lease');
    return true;
  }

  /** Sets the alarm for the end of a lease. @param earliest Unix milliseconds */
  async schedule(earliest: number): Promise<void> {
    const lease = this.#stored;
    if (lease && lease.state !== 'over')
      await this.#options.wakeBy(Math.max(lease.lapsesAt, earliest + RETRY_MS));
  }

  /** Examines the lease at an alarm. Never throws. */
  async poll(): Promise<void> {
    await this.#poll().catch(async (error) => {
      logEvent('host.lease_unwatched', { host_id: this.#options.hostId(), reason: String(error) });
      await this.#options.wakeBy(Date.now() + RETRY_MS);
    });
  }

  /**
   * Promotes the standby once the lease has lapsed. No renewal is granted from the decision on, even if this object is evicted
   * in between. While the records cannot be read nobody could renew the lease, so its time starts again.
   */
  async #poll(): Promise<void> {
    const { kv, wakeBy, promote } = this.#options;
    const lease = this.#stored;
    if (!lease || lease.state === 'over') return;
    const now = Date.now();
    const isRunning = lease.state === 'running';
    if (isRunning && now < lease.lapsesAt) return wakeBy(lease.lapsesAt);
    const restart = async (after: number) => {
      const lapsesAt = Date.now() + after;
      this.#store({ ...lease, lapsesAt, state: 'running' });
      await wakeBy(lapsesAt);
    };
    if (isRunning && now > lease.lapsesAt + LATE_MS) return restart(lease.lasts);
    await wakeBy(now + RETRY_MS);
    const isAsRead = () => this.#stored?.renewedAt === lease.renewedAt;
    const decide = () => {
      if (isAsRead()) this.#store({ ...lease, state: 'ending' });
      return isAsRead();
    };
    const silence = { generation: lease.generation, silentMs: now - lease.renewedAt };
    const outcome = await promote(silence, decide).catch((error) => {
      if (this.#stored?.state === 'ending') throw error;
      return null;
    });
    if (!isAsRead()) return;
    if (outcome === null) return restart(lease.lasts);
    const { isPromoted, generation } = outcome;
    if (isPromoted === null) kv.delete('lease');
    else if (isPromoted) this.#store({ ...lease, generation, state: 'over' });
    else await restart(RETRY_MS);
  }
}
