import { scrypt, timingSafeEqual } from 'node:crypto';
import { fromBase64, toBase64 } from '../../credentials/seal.ts';
import { hashingTurn } from './hashing-turn.ts';

/** Exponent of N, r and p (RFC 7914 section 2). */
interface Cost {
  log2N: number;
  r: number;
  p: number;
}

const COST: Cost = { log2N: 15, r: 8, p: 3 };
const SALT_BYTES = 16;
const HASH_BYTES = 32;
/** Twice what N = 2^15 with r = 8 takes. */
const MEMORY_MAX = 64 * 1024 * 1024;

/** A password in its one spelling: keyboards differ in how they compose letters with marks. */
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

/** The password as it is kept: `scrypt$<log2 N>$<r>$<p>$<salt>$<hash>`, both in base64. @throws ApiError RATE_LIMITED */
export async function hashPassword(password: string): Promise<string> {
  const salt = crypto.getRandomValues(new Uint8Array(SALT_BYTES));
  return format(COST, salt, await derive(password, salt, COST, HASH_BYTES));
}

/** No password has it; one is checked against it where there is no account, so that both take as long. */
const NOBODYS_HASH = format(COST, new Uint8Array(SALT_BYTES), new Uint8Array(HASH_BYTES));

/**
 * @param kept null for an address without an account: false, after the same work
 * @throws ApiError RATE_LIMITED
 */
export async function isPassword(password: string, kept: string | null): Promise<boolean> {
  const [, log2N, r, p, salt = '', hash = ''] = (kept ?? NOBODYS_HASH).split('$');
  const expected = fromBase64(hash);
  const cost = { log2N: Number(log2N), r: Number(r), p: Number(p) };
  const derived = await derive(password, fromBase64(salt), cost, expected.length);
  return timingSafeEqual(derived, expected);
}
