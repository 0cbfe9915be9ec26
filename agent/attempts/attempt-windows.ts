interface Window {
  /** When it ends, in milliseconds of the caller's clock. */
  end: number;
  count: number;
}

/** Counts attempts per branch. A branch's window opens with its first attempt and has a fixed length. */
export class AttemptWindows {
  readonly #limit: number;
  readonly #length: number;
  /** By branch. */
  readonly #windows = new Map<string, Window>();

  /** @param length of a window, in milliseconds */
  constructor(limit: number, length: number) {
    this.#limit = limit;
    this.#length = length;
  }

  /** Counts one attempt. @returns whether it is the branch's last within the limit */
  count(branchId: string, now: number): boolean {
    this.#forgetEnded(now);
    const window = this.#windows.get(branchId) ?? { end: now + this.#length, count: 0 };
    window.count += 1;
    this.#windows.set(branchId, window);
    return window.count === this.#limit;
  }

  /** Continues a window at its limit that another process left. */
  resume(branchId: string, now: number, endsIn: number): void {
    this.#windows.set(branchId, { end: now + Math.min(endsIn, this.#length), count: this.#limit });
  }

  /** Branches whose window is at its limit, with the milliseconds it has left. */
  atLimit(now: number): Map<string, { endsIn: number; count: number }> {
    this.#forgetEnded(now);
    const full = [...this.#windows].filter(([, { count }]) => count >= this.#limit);
    return new Map(full.map(([branchId, { end, count }]) => [branchId, { endsIn: end - now, count }]));
  }

  #forgetEnded(now: number) {
    for (const [branchId, { end }] of this.#windows) if (end <= now) this.#windows.delete(branchId);
  }
}
