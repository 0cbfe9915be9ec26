import { parseForeign } from '../../shared/foreign-json.ts';

/** The SHA-256 digest of the UTF-8 text, in hexadecimal. */
export async function sha256(text: string): Promise<string> {
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/**
 * RFC 4648 section 5 without padding. The unused bits of the last character must be zero, so that a signed
 * token has only one encoding.
 */
const STRICT = /^(?:[\w-]{4})*(?:[\w-][AQgw]|[\w-]{2}[AEIMQUYcgkosw048])?$/;

/** The decoded bytes, or null unless the text is the canonical encoding. */
export function decodeBase64url(text: string): Uint8Array<ArrayBuffer> | null {
  if (!STRICT.test(text)) return null;
  const binary = atob(text.replaceAll('-', '+').replaceAll('_', '/'));
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

const digest = (text: string) => crypto.subtle.digest('SHA-256', new TextEncoder().encode(text));

/** Compares digests of equal length in constant time, so that timing does not reveal a matching prefix. */
export async function isSameText(given: string, expected: string): Promise<boolean> {
  const [one, other] = await Promise.all([digest(given), digest(expected)]);
  return crypto.subtle.timingSafeEqual(one, other);
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Parses UTF-8 JSON; undefined if the bytes are not valid UTF-8, not valid JSON, or have a refused key. */
export function parseJson(bytes: Uint8Array): unknown {
  try {
    return parseForeign(utf8.decode(bytes));
  } catch {
    return undefined;
  }
}
