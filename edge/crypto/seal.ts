import { z } from 'zod';

const IV_BYTES = 12;

/** A key of the settings: 32 bytes with an ID. */
export interface SecretKey {
  id: string;
  bytes: Uint8Array;
}

export interface Sealed {
  keyId: string;
  /** Base64 of IV and ciphertext. */
  sealed: string;
}

export const toBase64 = (bytes: Uint8Array) => btoa(String.fromCharCode(...bytes));
export const fromBase64 = (text: string) =>
  Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

const encoder = new TextEncoder();

/** Binds a sealed text to its owner and its key: with another owner or key ID it cannot be unsealed. */
const associatedData = (owner: readonly string[], keyId: string) =>
  encoder.encode([...owner, keyId].join('\n'));

const importKey = ({ bytes }: SecretKey) =>
  crypto.subtle.importKey('raw', bytes, 'AES-GCM', false, ['encrypt', 'decrypt']);

/**
 * Seals a text with AES-256-GCM under the first key.
 * @param owner what the text belongs to; no part contains a line break
 */
export async function seal(
  keys: readonly SecretKey[],
  owner: readonly string[],
  text: string,
): Promise<Sealed> {
  const [key] = keys;
  if (!key) throw new Error('no key to seal with');
  const iv = crypto.getRandomValues(new Uint8Array(IV_BYTES));
  const ciphertext = await crypto.subtle.encrypt(
    { name: 'AES-GCM', iv, additionalData: associatedData(owner, key.id) },
    await importKey(key),
    encoder.encode(text),
  );
  return { keyId: key.id, sealed: toBase64(new Uint8Array([...iv, ...new Uint8Array(ciphertext)])) };
}

const SealedForm = z.object({ keyId: z.string(), sealed: z.string() });

/** As `seal`, as one text that a client stores, for instance a cookie. */
export const sealForClient = async (
  keys: readonly SecretKey[],
  owner: readonly string[],
  text: string,
): Promise<string> => JSON.stringify(await seal(keys, owner, text));

/** @returns null when the client's text was not sealed here for this owner, or when its key was removed */
export async function unsealFromClient(
  keys: readonly SecretKey[],
  owner: readonly string[],
  value: string,
): Promise<string | null> {
  try {
    return await unseal(keys, owner, SealedForm.parse(JSON.parse(value)));
  } catch {
    return null;
  }
}

/** @throws Error if the key is not configured, or the text was sealed for another owner */
export async function unseal(
  keys: readonly SecretKey[],
  owner: readonly string[],
  { keyId, sealed }: Sealed,
): Promise<string> {
  const key = keys.find(({ id }) => id === keyId);
  if (!key) throw new Error(`key ${keyId} is not configured`);
  const bytes = fromBase64(sealed);
  const plaintext = await crypto.subtle.decrypt(
    { name: 'AES-GCM', iv: bytes.slice(0, IV_BYTES), additionalData: associatedData(owner, keyId) },
    await importKey(key),
    bytes.slice(IV_BYTES),
  );
  return new TextDecoder().decode(plaintext);
}
