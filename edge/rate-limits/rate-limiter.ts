import { DurableObject } from 'cloudflare:workers';
import { readSettings } from '../settings.ts';
import {
  countIn,
  isOver,
  LentShares,
  Places,
  type RateWindow,
  type ReturnedShare,
  type WantedShare,
} from './counters.ts';
import type { RateLimiterRpc, WindowState } from './limiter-client.ts';
import { LIMITS, type LimitName, type LimitTable, type Refusals } from './limits.ts';

const WINDOWS = 'windows';
const REFUSALS = 'refusals';
const WRITE_AFTER_MS = 1000;

/**
 * One object per bucket (`idFromName(bucket)`), with a counter for each limit. Its storage holds the open
 * windows (key `windows`); an alarm at the end of the last window clears it. Places and what is lent are in
 * memory only. One object counts no requests and holds the total of all refusals (key `refusals`).
 */
export class RateLimiter extends DurableObject<object> implements RateLimiterRpc {
  readonly #limits: LimitTable;
  readonly #windows: Map<LimitName, RateWindow>;
  readonly #places = new Places();
  readonly #lent = new Map<LimitName, LentShares>();
  #writeTimer: ReturnType<typeof setTimeout> | null = null;
  #alarmAt: number | undefined;

  /** @param limits set only by tests */
  constructor(ctx: DurableObjectState, env: object, limits: LimitTable = LIMITS) {
    super(ctx, env);
    this.#limits = limits;
    this.#windows = ctx.storage.kv.get<Map<LimitName, RateWindow>>(WINDOWS) ?? new Map();
  }

  /**
   * Counts a request; called by `consume` of this folder. Atomic, because nothing is awaited between read and
   * write.
   */
  async consume(name: LimitName, wanted: WantedShare | null = null): Promise<WindowState> {
    if (wanted?.returned) this.#settle(name, wanted.returned);
    const { max, windowSeconds, written } = this.#limits[name];
    const limit = max(readSettings(this.env));
    const now = Date.now();
    const before = this.#windows.get(name);
    const { window, admitted, remaining } = countIn(before, now, {
      max: limit,
      windowMs: windowSeconds * 1000,
    });
    // What was lent of an earlier window is not of this one.
    if (window.endsAt !== before?.endsAt) this.#lent.delete(name);
    const lent = admitted && wanted ? this.#lentOf(name).lend(wanted, limit, remaining) : 0;
    this.#windows.set(name, { ...window, count: window.count + lent });
    if (admitted || window.endsAt !== before?.endsAt) {
      if (written === 'before_the_response') this.#write();
      else this.#writeSoon();
    }
    return { admitted, limit, remaining, endsAt: window.endsAt, restMs: window.endsAt - now, lent };
  }

  async giveBack(name: LimitName, share: ReturnedShare): Promise<void> {
    if (this.#settle(name, share)) this.#writeSoon();
  }

  #lentOf(name: LimitName): LentShares {
    const known = this.#lent.get(name) ?? new LentShares();
    this.#lent.set(name, known);
    return known;
  }

  /** Admits again what an isolate has not used. @returns whether there was something */
  #settle(name: LimitName, share: ReturnedShare): boolean {
    const window = this.#windows.get(name);
    const unused = this.#lent.get(name)?.settle(share) ?? 0;
    if (!window || unused === 0) return false;
    this.#windows.set(name, { ...window, count: Math.max(0, window.count - unused) });
    return true;
  }

  async peek(name: LimitName): Promise<WindowState> {
    const { max, windowSeconds } = this.#limits[name];
    const limit = max(readSettings(this.env));
    const now = Date.now();
    const { window, admitted } = countIn(this.#windows.get(name), now, {
      max: limit,
      windowMs: windowSeconds * 1000,
    });
    const remaining = admitted ? limit - window.count + 1 : 0;
    return { admitted, limit, remaining, endsAt: window.endsAt, restMs: window.endsAt - now };
  }

  /** Undoes one count, for instance of a correct password, because only wrong ones are limited. */
  async refund(name: LimitName): Promise<void> {
    const window = this.#windows.get(name);
    if (!window || window.count === 0) return;
    this.#windows.set(name, { ...window, count: window.count - 1 });
    this.#write();
  }

  async hold(holder: string, max: number): Promise<boolean> {
    return this.#places.hold(holder, max, Date.now());
  }

  async release(holder: string): Promise<void> {
    this.#places.release(holder);
  }

  async addRefusals(refusals: Refusals): Promise<void> {
    const total = await this.refusals();
    for (const [limit, count] of Object.entries(refusals) as [LimitName, number][])
      total[limit] = (total[limit] ?? 0) + count;
    this.ctx.storage.kv.put(REFUSALS, total);
  }

  async refusals(): Promise<Refusals> {
    return this.ctx.storage.kv.get<Refusals>(REFUSALS) ?? {};
  }

  override async alarm(): Promise<void> {
    this.#alarmAt = undefined;
    this.#write();
  }

  #writeSoon(): void {
    this.#writeTimer ??= setTimeout(() => this.#write({ allowUnconfirmed: true }), WRITE_AFTER_MS);
  }

  /**
   * Writes all open windows, or clears the storage. The runtime holds back responses until the write is
   * confirmed.
   */
  #write(options: DurableObjectPutOptions = {}): void {
    if (this.#writeTimer !== null) clearTimeout(this.#writeTimer);
    this.#writeTimer = null;
    const now = Date.now();
    for (const [name, window] of this.#windows) if (isOver(window, now)) this.#windows.delete(name);
    const { storage } = this.ctx;
    if (this.#windows.size === 0) {
      this.#alarmAt = undefined;
      void storage.deleteAll();
      return;
    }
    void storage.put(WINDOWS, this.#windows, options);
    const lastEnd = Math.max(...[...this.#windows.values()].map(({ endsAt }) => endsAt));
    if (lastEnd === this.#alarmAt) return;
    this.#alarmAt = lastEnd;
    void storage.setAlarm(lastEnd);
  }
}
