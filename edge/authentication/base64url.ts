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
