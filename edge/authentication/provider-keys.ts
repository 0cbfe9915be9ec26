import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { BoundedMap } from '../bounded-map.ts';
import { decodeBase64url, parseJson } from '../crypto/encoding.ts';
import { logEvent } from '../log.ts';
import type { Claims } from './paseto.ts';

const PASERK_HEADER = 'k4.public.';
const KEY_BYTES = 32;

const Ed25519Key = z.string().transform((encoded, context) => {
  const bytes = decodeBase64url(encoded);
  if (bytes?.length === KEY_BYTES) return bytes;
  context.addIssue('not 32 bytes in base64url');
  return z.NEVER;
});

/** An Ed25519 public key in PASERK, `k4.public.…`. */
export const Paserk = z
  .string()
  .startsWith(PASERK_HEADER)
  .transform((text) => text.slice(PASERK_HEADER.length))
  .pipe(Ed25519Key);

const KeyId = z.string().min(1);

const PasetoEntry = z
  .object({ kid: KeyId, alg: z.literal('v4.public'), public_key: Paserk })
  .transform(({ kid, public_key }) => ({ kid, publicKey: public_key }));

/** RFC 8037. */
const JwkEntry = z
  .object({ kid: KeyId, kty: z.literal('OKP'), crv: z.literal('Ed25519'), x: Ed25519Key })
  .transform(({ kid, x }) => ({ kid, publicKey: x }));

const Entry = z.union([PasetoEntry, JwkEntry]);
const KeyDocument = z.object({ keys: z.array(z.unknown()) });

/** Ed25519 public keys by `kid`. */
export type PublicKeys = ReadonlyMap<string, Uint8Array>;

/**
 * Parses the provider's key document: PASERK entries, or a JWK set. Keys of other kinds are skipped. An empty
 * list is accepted and withdraws all keys; a list without any usable key is not.
 * @throws Error when the document is malformed
 */
export function readKeyDocument(document: unknown): PublicKeys {
  const { keys } = KeyDocument.parse(document);
  const readable = keys.flatMap((entry) => Entry.safeParse(entry).data ?? []);
  if (keys.length > 0 && readable.length === 0) throw new Error('the key document contains no usable key');
  return new Map(readable.map(({ kid, publicKey }) => [kid, publicKey]));
}

/** Whether both contain the same keys under the same ids. */
export function sameKeys(one: PublicKeys, other: PublicKeys): boolean {
  if (one.size !== other.size) return false;
  return [...one].every(([kid, key]) => {
    const otherKey = other.get(kid);
    return otherKey !== undefined && key.every((byte, at) => byte === otherKey[at]);
  });
}

/** Timeout for the whole key document. */
export const KEY_FETCH_MS = 5_000;
const DOCUMENT_MAX_BYTES = 64 * 1024;

/** Names of this machine in a URL. */
const LOOPBACK: ReadonlySet<string> = new Set(['localhost', '127.0.0.1', '[::1]']);

/** An attacker who can modify this response can sign in as any user, so plain HTTP is limited to loopback. */
function secureAddress(endpoint: string): URL {
  const address = new URL(endpoint);
  const secure =
    address.protocol === 'https:' || (address.protocol === 'http:' && LOOPBACK.has(address.hostname));
  if (!secure) throw new Error('the key endpoint must be https, or http on a loopback address');
  return address;
}

/**
 * Fetches the current keys of the provider.
 * @throws Error when the document is unavailable, too slow, too large or malformed
 */
export const fetchKeys = async (endpoint: string): Promise<PublicKeys> =>
  readKeyDocument(await fetchDocument(secureAddress(endpoint), AbortSignal.timeout(KEY_FETCH_MS)));

/**
 * Fetches a JSON document of a provider.
 * @throws Error when it is unavailable, too slow or too large
 */
export async function fetchDocument(address: URL, signal: AbortSignal): Promise<unknown> {
  const response = await fetch(address, {
    headers: { accept: 'application/json' },
    // A redirect could lead to another host or to plain HTTP, so it counts as a failure.
    redirect: 'manual',
    signal,
  });
  if (response.status !== 200) {
    await response.body?.cancel();
    throw new Error(`the key endpoint responded with status ${response.status}`);
  }
  const tooLarge = () => new Error('the key document is too large');
  return parseJson(await readBounded(response, DOCUMENT_MAX_BYTES, tooLarge));
}

/** Reads a body up to the limit, so that its sender cannot fill the memory of an isolate. @throws `tooLarge` */
export async function readBounded(
  response: Response,
  maxBytes: number,
  tooLarge: () => Error,
): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of response.body ?? []) {
    size += part.length;
    if (size > maxBytes) throw tooLarge();
    parts.push(part);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Keys of this age are fetched again in the background. */
const REFRESH_AFTER_MS = 3_600_000;
/** An isolate whose fetch is overdue by this much may have withdrawn keys, so it waits for new ones. */
const OVERDUE_AFTER_MS = 3_600_000;
/** Clients can invent unknown `kid` values, so these cause at most one fetch per this interval. */
const UNKNOWN_KEY_PAUSE_MS = 30_000;
/** Delay after a failed fetch; short while there are no keys at all. */
const RETRY_WITH_KEYS_MS = 30_000;
const RETRY_WITHOUT_KEYS_MS = 1_000;
/** Verified tokens that an isolate caches; at most 8 KiB each (`TOKEN_MAX`). */
const VERIFIED_TOKENS = 2_000;

/** The time of a request, and how to keep work alive beyond it. */
export interface RequestTiming {
  now: Date;
  waitUntil: (work: Promise<unknown>) => void;
}

/**
 * A set of keys, and the claims of the tokens verified with it, by the whole token. They are replaced
 * together, so that a token verified with a withdrawn key is not found in the next ring.
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
   * @returns or KEYS_UNAVAILABLE when there are no keys at all
   */
  async ringFor(kid: string, timing: RequestTiming): Promise<Result<KeyRing<Key>, Failure>> {
    const { now, waitUntil } = timing;
    const ring = await this.current(timing);
    if (ring?.keys.has(kid)) return ok(ring);
    const dueAt = ring ? this.#nextUnknownKeyAt : this.#nextFetchAt;
    if (this.#fetching || now.getTime() >= dueAt) {
      if (ring) this.#nextUnknownKeyAt = now.getTime() + UNKNOWN_KEY_PAUSE_MS;
      await this.#fetch(now, waitUntil);
    }
    if (!this.#ring?.keys.size) return fail({ code: 'KEYS_UNAVAILABLE' });
    return ok(this.#ring);
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
