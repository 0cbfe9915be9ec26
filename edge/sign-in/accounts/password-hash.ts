import { scrypt, timingSafeEqual } from 'node:crypto';
import { fromBase64, toBase64 } from '../../credentials/seal.ts';
import { hashingTurn } from './hashing-turn.ts';

/** The parameters of scrypt (RFC 7914 section 2), with N as its binary logarithm. */
interface Cost {
  log2N: number;
  r: number;
  p: number;
}

const COST: Cost = { log2N: 15, r: 8, p: 3 };
const SALT_BYTES = 16;
const HASH_BYTES = 32;
/** Twice the memory that N = 2^15 with r = 8 needs. */
const MEMORY_MAX = 64 * 1024 * 1024;

/** Normalizes the password first, because keyboards differ in how they compose letters with marks. */
async function derive(
  password: string,
  salt: Uint8Array,
  { log2N, r, p }: Cost,
  length: number,
): Promise<Uint8Array> {
  await hashingTurn();
  const options = { N: 2 ** log2N, r, p, maxmem: MEMORY_MAX };
  return new Promise((resolve, reject) => {
    scrypt(password.normalize('NFC'), salt, length, options, (error, derived) =>
      error ? reject(error) : resolve(derived),
    );
  });
}

const format = ({ log2N, r, p }: Cost, salt: Uint8Array, hash: Uint8Array) =>
  ['scrypt', log2N, r, p, toBase64(salt), toBase64(hash)].join('$');

/** @returns `scrypt$<log2 N>$<r>$<p>$<salt>$<hash>`, salt and hash in base64. @throws ApiError RATE_LIMITED */
export async function hashPassword(password: string): Promise<string> {
  const salt = crypto.getRandomValues(new Uint8Array(SALT_BYTES));
  return format(COST, salt, await derive(password, salt, COST, HASH_BYTES));
}

/**
 * A hash that no password has. It is compared when there is no account, so that the response time does not reveal
 * which e-mail addresses have one.
 */
const DUMMY_HASH = format(COST, new Uint8Array(SALT_BYTES), new Uint8Array(HASH_BYTES));

/**
 * @param stored as `hashPassword` returns it; null for an address without an account: false, after the same work
 * @throws ApiError RATE_LIMITED
 */
export async function isPassword(password: string, stored: string | null): Promise<boolean> {
  const [, log2N, r, p, salt = '', hash = ''] = (stored ?? DUMMY_HASH).split('$');
  const expected = fromBase64(hash);
  const cost = { log2N: Number(log2N), r: Number(r), p: Number(p) };
  const derived = await derive(password, fromBase64(salt), cost, expected.length);
  return timingSafeEqual(derived, expected);
}
