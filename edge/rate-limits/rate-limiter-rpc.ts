import type { ReturnedShare, WantedShare } from './lent-shares.ts';
import type { LimitName, Refusals } from './limits.ts';

/** The window of one limit after a request was counted. */
export interface WindowState {
  admitted: boolean;
  /** Number of requests that one window admits. */
  limit: number;
  /** Number of requests that this window still admits, including those lent with this count. */
  remaining: number;
  /** End of the window by the object's clock: Unix milliseconds. */
  endsAt: number;
  /** Milliseconds until the window ends. */
  restMs: number;
  /** How many further requests the caller may admit itself. Missing: the object runs an earlier release. */
  lent?: number;
}

/** The Durable Object that counts the requests of one bucket. */
export interface RateLimiterRpc extends Rpc.DurableObjectBranded {
  /** @param wanted a share that the caller asks for, which is lent only if the request is admitted */
  consume(name: LimitName, wanted?: WantedShare | null): Promise<WindowState>;
  /** Ends a loan. */
  giveBack(name: LimitName, share: ReturnedShare): Promise<void>;
  /** Whether a request would be admitted, without counting one. */
  peek(name: LimitName): Promise<WindowState>;
  refund(name: LimitName): Promise<void>;
  /** Gets or renews a place for `LEASE_MS`. @returns false if all `max` places are taken */
  hold(holder: string, max: number): Promise<boolean>;
  release(holder: string): Promise<void>;
  /** Of the one object that holds the totals of all buckets. */
  addRefusals(refusals: Refusals): Promise<void>;
  refusals(): Promise<Refusals>;
}
