import { base64url } from 'jose';

/**
 * `bg_<id>_<secret><checksum>`: an ID of 16 characters, 32 random bytes in base64url, and the CRC-32 of all before it
 * in hexadecimal. A scanner recognises a leaked key by its form and its checksum, without asking the gateway.
 */
const API_KEY = /^bg_([0-9a-z]{16})_([\w-]{43})([0-9a-f]{8})$/;
const PREFIX = 'bg_';
const ID_LENGTH = 16;
const ID_ALPHABET = 'abcdefghijklmnopqrstuvwxyz234567';
const SECRET_BYTES = 32;

/** The reversed polynomial of CRC-32 (ISO 3309), as in zlib. */
const POLYNOMIAL = 0xedb88320;

export interface ApiKeyParts {
  id: string;
  secret: string;
}

export const isApiKey = (token: string): boolean => token.startsWith(PREFIX);

function checksumOf(text: string): string {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ POLYNOMIAL : crc >>> 1;
  }
  return ((crc ^ 0xffffffff) >>> 0).toString(16).padStart(8, '0');
}

const random = (bytes: number) => crypto.getRandomValues(new Uint8Array(bytes));

/** A new key: 80 random bits to name it and 256 to prove it. */
export function makeApiKey(): ApiKeyParts & { key: string } {
  const id = [...random(ID_LENGTH)].map((byte) => ID_ALPHABET[byte % ID_ALPHABET.length]).join('');
  const secret = base64url.encode(random(SECRET_BYTES));
  const text = `${PREFIX}${id}_${secret}`;
  return { id, secret, key: text + checksumOf(text) };
}

/** The parts of a key; null for a text that no gateway has made, so that a mistyped key costs no look-up. */
export function readApiKey(token: string): ApiKeyParts | null {
  const [, id, secret, checksum = ''] = API_KEY.exec(token) ?? [];
  if (id === undefined || secret === undefined) return null;
  return checksumOf(token.slice(0, -checksum.length)) === checksum ? { id, secret } : null;
}
