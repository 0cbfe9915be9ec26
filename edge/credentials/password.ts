import type { BranchRole } from '../../shared/branch/login.ts';

const PASSWORD_BYTES = 24;
const SALT_BYTES = 16;
const IV_BYTES = 12;
/** PostgreSQL's default for SCRAM-SHA-256. The passwords are random, so more would guard nothing. */
const SCRAM_ITERATIONS = 4096;

export interface CredentialKey {
  id: string;
  bytes: Uint8Array;
}

export interface SealedPassword {
  keyId: string;
  sealed: string;
}

const encoder = new TextEncoder();
const toBase64 = (bytes: Uint8Array) => btoa(String.fromCharCode(...bytes));
const fromBase64 = (text: string) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

/** A new password: 192 random bits in characters that need no escaping in a URL. */
export const makePassword = () =>
  toBase64(crypto.getRandomValues(new Uint8Array(PASSWORD_BYTES)))
    .replaceAll('+', '-')
    .replaceAll('/', '_');

/** What binds a sealed password to its place: moved to another branch, role or key it does not open. */
const associatedData = (branchId: string, role: BranchRole, keyId: string) =>
  encoder.encode(`${branchId}\n${role}\n${keyId}`);

const importKey = (key: CredentialKey) =>
  crypto.subtle.importKey('raw', key.bytes, 'AES-GCM', false, ['encrypt', 'decrypt']);

/** Seals a password with AES-256-GCM under the first key; base64 of IV and ciphertext. */
export async function sealPassword(
  keys: readonly CredentialKey[],
  branchId: string,
  role: BranchRole,
  password: string,
): Promise<SealedPassword> {
  const [key] = keys;
  if (!key) throw new Error('no credential key');
  const iv = crypto.getRandomValues(new Uint8Array(IV_BYTES));
  const additionalData = associatedData(branchId, role, key.id);
  const ciphertext = await crypto.subtle.encrypt(
    { name: 'AES-GCM', iv, additionalData },
    await importKey(key),
    encoder.encode(password),
  );
  return { keyId: key.id, sealed: toBase64(new Uint8Array([...iv, ...new Uint8Array(ciphertext)])) };
}

/** @throws Error when the key is gone or the seal is not of this branch and role */
export async function openPassword(
  keys: readonly CredentialKey[],
  branchId: string,
  role: BranchRole,
  { keyId, sealed }: SealedPassword,
): Promise<string> {
  const key = keys.find(({ id }) => id === keyId);
  if (!key) throw new Error(`credential key ${keyId} is not configured`);
  const bytes = fromBase64(sealed);
  const plaintext = await crypto.subtle.decrypt(
    { name: 'AES-GCM', iv: bytes.slice(0, IV_BYTES), additionalData: associatedData(branchId, role, keyId) },
    await importKey(key),
    bytes.slice(IV_BYTES),
  );
  return new TextDecoder().decode(plaintext);
}

async function hmac(key: Uint8Array, data: Uint8Array): Promise<Uint8Array> {
  const imported = await crypto.subtle.importKey('raw', key, { name: 'HMAC', hash: 'SHA-256' }, false, [
    'sign',
  ]);
  return new Uint8Array(await crypto.subtle.sign('HMAC', imported, data));
}

/**
 * SCRAM-SHA-256 verifier in the form PostgreSQL and PgBouncer store (RFC 5802 section 3, RFC 7677).
 * @param salt given by tests alone
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
