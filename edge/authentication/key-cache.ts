import { BoundedMap } from '../bounded-map.ts';
import { ApiError } from '../errors.ts';
import { logEvent } from '../log.ts';
import type { Claims } from './claims.ts';
import { KEY_FETCH_MS } from './fetch-keys.ts';

/** Keys of this age are fetched again in the background. */
const REFRESH_AFTER_MS = 3_600_000;
/** An isolate whose fetch is overdue by this much may have withdrawn keys, so it waits for new ones. */
const OVERDUE_AFTER_MS = 3_600_000;
/** Clients can invent unknown `kid` values, so these cause at most one fetch per this interval. */
const UNKNOWN_KEY_PAUSE_MS = 30_000;
/** Delay after a failed fetch; short while there are no keys at all. */
const RETRY_WITH_KEYS_MS = 30_000;
const RETRY_WITHOUT_KEYS_MS = 1_000;
/** Verified tokens that an isolate caches; at most 8 KiB each (`bearer.ts`). */
const VERIFIED_TOKENS = 2_000;

/** The time of a request, and how to keep work alive beyond it. */
export interface RequestTiming {
  now: Date;
  waitUntil: (work: Promise<unknown>) => void;
}

/**
 * A set of keys, and the claims of the tokens verified with it, by the whole token. They are replaced together,
 * so that a token verified with a withdrawn key is not found in the next ring.
 */
interface KeyRing<Key> {
  readonly keys: ReadonlyMap<string, Key>;
  readonly verified: BoundedMap<string, Claims>;
}

/** Where a provider's keys, by their ids, come from. `fetch` takes at most `KEY_FETCH_MS`. */
interface KeySource<Key> {
  fetch: () => Promise<ReadonlyMap<string, Key>>;
  areSame: (one: ReadonlyMap<string, Key>, other: ReadonlyMap<string, Key>) => boolean;
}

/**
 * The provider's keys, cached per isolate. While the provider is unavailable the cached keys remain in use.
 * Concurrent requests share one fetch.
 */
export class KeyCache<Key> {
  readonly #source: KeySource<Key>;
  #ring: KeyRing<Key> | null = null;
  #nextFetchAt = 0;
  #nextUnknownKeyAt = 0;
  #fetching: { since: number; done: Promise<void> } | null = null;

  constructor(source: KeySource<Key>) {
    this.#source = source;
  }

  /** The current ring, or null before the first successful fetch. */
  async current({ now, waitUntil }: RequestTiming): Promise<KeyRing<Key> | null> {
    const overdue = now.getTime() - this.#nextFetchAt;
    if (this.#ring && overdue >= 0) {
      const fetched = this.#fetch(now, waitUntil);
      if (overdue >= OVERDUE_AFTER_MS) await fetched;
    }
    return this.#ring;
  }

  /**
   * The ring with this key, fetched if necessary; a ring without it if the provider does not know the key.
   * @throws ApiError KEYS_UNAVAILABLE when there are no keys at all
   */
  async ringFor(kid: string, timing: RequestTiming): Promise<KeyRing<Key>> {
    const { now, waitUntil } = timing;
    const ring = await this.current(timing);
    if (ring?.keys.has(kid)) return ring;
    const dueAt = ring ? this.#nextUnknownKeyAt : this.#nextFetchAt;
    if (this.#fetching || now.getTime() >= dueAt) {
      if (ring) this.#nextUnknownKeyAt = now.getTime() + UNKNOWN_KEY_PAUSE_MS;
      await this.#fetch(now, waitUntil);
    }
    if (!this.#ring?.keys.size) throw new ApiError('KEYS_UNAVAILABLE');
    return this.#ring;
  }

  /** Never rejects. A fetch past its timeout belonged to a cancelled request, so it is not awaited again. */
  #fetch(now: Date, waitUntil: RequestTiming['waitUntil']): Promise<void> {
    const since = now.getTime();
    if (this.#fetching && since <= this.#fetching.since + KEY_FETCH_MS) return this.#fetching.done;
    const done = this.#replaceKeys(since).finally(() => {
      this.#fetching = null;
    });
    this.#fetching = { since, done };
    // Other requests wait for this fetch too, so it must outlive the request that started it.
    waitUntil(done);
    return done;
  }

  async #replaceKeys(startedAt: number): Promise<void> {
    try {
      const keys = await this.#source.fetch();
      if (!this.#ring || !this.#source.areSame(this.#ring.keys, keys)) {
        this.#ring = { keys, verified: new BoundedMap(VERIFIED_TOKENS) };
      }
      this.#nextFetchAt = startedAt + REFRESH_AFTER_MS;
    } catch (error) {
      this.#nextFetchAt = startedAt + (this.#ring ? RETRY_WITH_KEYS_MS : RETRY_WITHOUT_KEYS_MS);
      logEvent('keys.unavailable', { reason: error instanceof Error ? error.message : String(error) });
    }
  }
}
