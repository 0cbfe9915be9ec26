import type { BranchRole } from '../../shared/branch/login.ts';
import { type Sealed, type SecretKey, seal, toBase64, unseal } from './seal.ts';

const PASSWORD_BYTES = 24;
const SALT_BYTES = 16;
/** PostgreSQL's default for SCRAM-SHA-256. The passwords are random, so more iterations add no protection. */
const SCRAM_ITERATIONS = 4096;

const encoder = new TextEncoder();

/** A new password: 192 random bits in characters that need no escaping in a URL. */
export const makePassword = () =>
  toBase64(crypto.getRandomValues(new Uint8Array(PASSWORD_BYTES)))
    .replaceAll('+', '-')
    .replaceAll('/', '_');

/** The owner that a sealed password is bound to. Not the tenant, which may change. */
const ownerOf = (branchId: string, role: BranchRole) => [branchId, role];

export const sealPassword = (
  keys: readonly SecretKey[],
  branchId: string,
  role: BranchRole,
  password: string,
): Promise<Sealed> => seal(keys, ownerOf(branchId, role), password);

/** @throws Error if the key is not configured, or the password was sealed for another branch or role */
export const openPassword = (
  keys: readonly SecretKey[],
  branchId: string,
  role: BranchRole,
  sealed: Sealed,
): Promise<string> => unseal(keys, ownerOf(branchId, role), sealed);

async function hmac(key: Uint8Array, data: Uint8Array): Promise<Uint8Array> {
  const imported = await crypto.subtle.importKey('raw', key, { name: 'HMAC', hash: 'SHA-256' }, false, [
    'sign',
  ]);
  return new Uint8Array(await crypto.subtle.sign('HMAC', imported, data));
}

/**
 * SCRAM-SHA-256 verifier in the form PostgreSQL and PgBouncer store (RFC 5802 section 3, RFC 7677).
 * @param salt set by tests only
 */
export async function scramVerifier(
  password: string,
  salt = crypto.getRandomValues(new Uint8Array(SALT_BYTES)),
): Promise<string> {
  const material = await crypto.subtle.importKey('raw', encoder.encode(password), 'PBKDF2', false, [
    'deriveBits',
  ]);
  const derivation = { name: 'PBKDF2', hash: 'SHA-256', salt, iterations: SCRAM_ITERATIONS };
  const salted = new Uint8Array(await crypto.subtle.deriveBits(derivation, material, 256));
  const clientKey = await hmac(salted, encoder.encode('Client Key'));
  const storedKey = new Uint8Array(await crypto.subtle.digest('SHA-256', clientKey));
  const serverKey = await hmac(salted, encoder.encode('Server Key'));
  return `SCRAM-SHA-256$${SCRAM_ITERATIONS}:${toBase64(salt)}$${toBase64(storedKey)}:${toBase64(serverKey)}`;
}
