const IV_BYTES = 12;

/** A key of the settings: 32 bytes, known by its id. */
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

/** What binds a sealed text to its place: moved to another, or named with another key, it does not open. */
const associatedData = (place: readonly string[], keyId: string) =>
  encoder.encode([...place, keyId].join('\n'));

const importKey = ({ bytes }: SecretKey) =>
  crypto.subtle.importKey('raw', bytes, 'AES-GCM', false, ['encrypt', 'decrypt']);

/**
 * Seals a text with AES-256-GCM under the first key.
 * @param place what it belongs to; no part has a line break
 */
export async function seal(
  keys: readonly SecretKey[],
  place: readonly string[],
  text: string,
): Promise<Sealed> {
  const [key] = keys;
  if (!key) throw new Error('no key to seal with');
  const iv = crypto.getRandomValues(new Uint8Array(IV_BYTES));
  const ciphertext = await crypto.subtle.encrypt(
    { name: 'AES-GCM', iv, additionalData: associatedData(place, key.id) },
    await importKey(key),
    encoder.encode(text),
  );
  return { keyId: key.id, sealed: toBase64(new Uint8Array([...iv, ...new Uint8Array(ciphertext)])) };
}

/** @throws Error when the key is gone or the seal is not of this place */
export async function unseal(
  keys: readonly SecretKey[],
  place: readonly string[],
  { keyId, sealed }: Sealed,
): Promise<string> {
  const key = keys.find(({ id }) => id === keyId);
  if (!key) throw new Error(`key ${keyId} is not configured`);
  const bytes = fromBase64(sealed);
  const plaintext = await crypto.subtle.decrypt(
    { name: 'AES-GCM', iv: bytes.slice(0, IV_BYTES), additionalData: associatedData(place, keyId) },
    await importKey(key),
    bytes.slice(IV_BYTES),
  );
  return new TextDecoder().decode(plaintext);
}
