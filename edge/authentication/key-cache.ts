import { BoundedMap } from '../bounded-map.ts';
import { ApiError } from '../errors.ts';
import { logEvent } from '../log.ts';
import type { Claims } from './claims.ts';
import { fetchKeys, KEY_FETCH_MS } from './fetch-keys.ts';
import { type PublicKeys, sameKeys } from './public-key.ts';

/** Keys of this age are fetched anew in the background. */
const REFRESH_AFTER_MS = 3_600_000;
/** An isolate that slept past its fetch by this much may hold withdrawn keys: it fetches before it uses them. */
const OVERDUE_AFTER_MS = 3_600_000;
/** An unknown `kid` is free to invent, so it may cause one fetch in this time. */
const UNKNOWN_KEY_PAUSE_MS = 30_000;
/** Pause after a failed fetch; short when there is no key to go on with. */
const RETRY_WITH_KEYS_MS = 30_000;
const RETRY_WITHOUT_KEYS_MS = 1_000;
/** Verified tokens an isolate remembers; at most 8 KiB each (`bearer.ts`). */
const VERIFIED_TOKENS = 2_000;

/** When a request came, and how to keep work alive beyond it. */
export interface RequestMoment {
  now: Date;
  waitUntil: (work: Promise<unknown>) => void;
}

/**
 * One set of keys, and the claims of the tokens verified with it, by the whole token. They end together:
 * a token that was verified with a withdrawn key can't be found in the ring of the keys that followed.
 */
interface KeyRing {
  readonly keys: PublicKeys;
  readonly verified: BoundedMap<string, Claims>;
}

/**
 * The provider's keys as this isolate knows them. While the provider is down the known keys go on serving.
 * A fetch under way is shared by everyone who needs it.
 */
export class KeyCache {
  readonly #endpoint: string;
  #ring: KeyRing | null = null;
  #nextFetchAt = 0;
  #nextUnknownKeyAt = 0;
  #fetching: { since: number; done: Promise<void> } | null = null;

  constructor(endpoint: string) {
    this.#endpoint = endpoint;
  }

  /** The ring as it is, or null before the first keys have come. */
  async current({ now, waitUntil }: RequestMoment): Promise<KeyRing | null> {
    const overdue = now.getTime() - this.#nextFetchAt;
    if (this.#ring && overdue >= 0) {
      const fetched = this.#fetch(now, waitUntil);
      if (overdue >= OVERDUE_AFTER_MS) await fetched;
    }
    return this.#ring;
  }

  /**
   * The ring that holds this key, fetched when it must be; a ring without it when the provider has no such key.
   * @throws ApiError KEYS_UNAVAILABLE when there is no key at all
   */
  async ringFor(kid: string, moment: RequestMoment): Promise<KeyRing> {
    const { now, waitUntil } = moment;
    const ring = await this.current(moment);
    if (ring?.keys.has(kid)) return ring;
    const dueAt = ring ? this.#nextUnknownKeyAt : this.#nextFetchAt;
    if (this.#fetching || now.getTime() >= dueAt) {
      if (ring) this.#nextUnknownKeyAt = now.getTime() + UNKNOWN_KEY_PAUSE_MS;
      await this.#fetch(now, waitUntil);
    }
    if (!this.#ring?.keys.size) throw new ApiError('KEYS_UNAVAILABLE');
    return this.#ring;
  }

  /** Never rejects. A fetch that outlived its time limit belonged to a request that was ended: it is not joined. */
  #fetch(now: Date, waitUntil: RequestMoment['waitUntil']): Promise<void> {
    const since = now.getTime();
    if (this.#fetching && since <= this.#fetching.since + KEY_FETCH_MS) return this.#fetching.done;
    const done = this.#replaceKeys(since).finally(() => {
      this.#fetching = null;
    });
    this.#fetching = { since, done };
    // Others wait for this fetch too: it must not end with the request that began it.
    waitUntil(done);
    return done;
  }

  async #replaceKeys(startedAt: number): Promise<void> {
    try {
      const keys = await fetchKeys(this.#endpoint);
      if (!this.#ring || !sameKeys(this.#ring.keys, keys)) {
        this.#ring = { keys, verified: new BoundedMap(VERIFIED_TOKENS) };
      }
      this.#nextFetchAt = startedAt + REFRESH_AFTER_MS;
    } catch (error) {
      this.#nextFetchAt = startedAt + (this.#ring ? RETRY_WITH_KEYS_MS : RETRY_WITHOUT_KEYS_MS);
      logEvent('keys.unavailable', { reason: error instanceof Error ? error.message : String(error) });
    }
  }
}
