/** How long a lease lasts that is not renewed. */
export const LEASE_MS = 45_000;

/**
 * Leases on a limited number of places, in memory: a holder renews its lease, so that a lost instance knows all holders
 * again after one round of renewals, and a lost holder loses its place.
 */
export class Leases {
  readonly #ends = new Map<string, number>();

  /** Gets or renews the holder's place. @returns false if all places are taken */
  hold(holder: string, max: number, now: number): boolean {
    for (const [other, endsAt] of this.#ends) if (endsAt <= now) this.#ends.delete(other);
    if (!this.#ends.has(holder) && this.#ends.size >= max) return false;
    this.#ends.set(holder, now + LEASE_MS);
    return true;
  }

  release(holder: string): void {
    this.#ends.delete(holder);
  }
}
