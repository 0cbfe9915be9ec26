import { scrypt, timingSafeEqual } from 'node:crypto';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { fromBase64, toBase64 } from './seal.ts';

/** The parameters of scrypt (RFC 7914 section 2), with N as its binary logarithm. */
interface Cost {
  log2N: number;
  r: number;
  p: number;
}

/** @param log2N the setting `PASSWORD_COST` */
const costOf = (log2N: number): Cost => ({ log2N, r: 8, p: 3 });
const SALT_BYTES = 16;
const HASH_BYTES = 32;
/** Somewhat more than the highest cost needs with r = 8. */
const MEMORY_MAX = 96 * 1024 * 1024;

/** Normalizes the password first, because keyboards differ in how they compose letters with marks. */
async function derive(
  password: string,
  salt: Uint8Array,
  { log2N, r, p }: Cost,
  length: number,
): Promise<Result<Uint8Array, Failure>> {
  const turn = await hashingTurn(log2N);
  if (!turn.ok) return turn;
  const options = { N: 2 ** log2N, r, p, maxmem: MEMORY_MAX };
  return new Promise((resolve, reject) => {
    scrypt(password.normalize('NFC'), salt, length, options, (error, derived) =>
      error ? reject(error) : resolve(ok(derived)),
    );
  });
}

const format = ({ log2N, r, p }: Cost, salt: Uint8Array, hash: Uint8Array) =>
  ['scrypt', log2N, r, p, toBase64(salt), toBase64(hash)].join('$');

/**
 * @param log2N the setting `PASSWORD_COST`
 * @returns `scrypt$<log2 N>$<r>$<p>$<salt>$<hash>`, salt and hash in base64; or RATE_LIMITED
 */
export async function hashPassword(password: string, log2N: number): Promise<Result<string, Failure>> {
  const cost = costOf(log2N);
  const salt = crypto.getRandomValues(new Uint8Array(SALT_BYTES));
  const derived = await derive(password, salt, cost, HASH_BYTES);
  return derived.ok ? ok(format(cost, salt, derived.value)) : derived;
}

/**
 * A hash that no password has. It is compared when there is no account, so that the response time does not
 * reveal which e-mail addresses have one.
 */
const dummyHash = (log2N: number) =>
  format(costOf(log2N), new Uint8Array(SALT_BYTES), new Uint8Array(HASH_BYTES));

/**
 * @param stored as `hashPassword` returns it; null for an address without an account: false, after the same
 *   work
 * @param log2N the setting `PASSWORD_COST`
 * @returns or RATE_LIMITED
 */
export async function isPassword(
  password: string,
  stored: string | null,
  log2N: number,
): Promise<Result<boolean, Failure>> {
  const [, storedLog2N, r, p, salt = '', hash = ''] = (stored ?? dummyHash(log2N)).split('$');
  const expected = fromBase64(hash);
  const cost = { log2N: Number(storedLog2N), r: Number(r), p: Number(p) };
  const derived = await derive(password, fromBase64(salt), cost, expected.length);
  return derived.ok ? ok(timingSafeEqual(derived.value, expected)) : derived;
}

/** Longer than a hash of this cost takes, so that other requests can use the rest of the turn. */
const turnMs = (log2N: number): number => Math.ceil(500 * 2 ** (log2N - 15));

const MAX_WAIT_MS = 15_000;

/** Unix milliseconds. */
let nextTurnAt = 0;

/**
 * Waits for a turn to hash a password. workerd hashes on the only thread of an isolate, so without turns a
 * burst of logins would block every other request until the last hash is done.
 * @param log2N the cost of the hash, as `PASSWORD_COST`
 * @returns or RATE_LIMITED when too many requests wait
 */
export async function hashingTurn(log2N: number): Promise<Result<null, Failure>> {
  const turn = turnMs(log2N);
  const now = Date.now();
  const ahead = Math.max(0, nextTurnAt - now);
  // The next turn is later than any turn that was assigned: the clock was set back.
  const wait = ahead > MAX_WAIT_MS + turn ? 0 : ahead;
  if (wait > MAX_WAIT_MS) {
    return fail({
      code: 'RATE_LIMITED',
      fields: { retry_after: Math.ceil(wait / 1000) },
      reason: 'too many requests wait for a password hash',
    });
  }
  nextTurnAt = now + wait + turn;
  await new Promise((resolve) => setTimeout(resolve, wait));
  return ok(null);
}
