/**
 * RFC 4648 section 5 without padding. The bits that the last character leaves over must be zero, or one
 * signed token could be written in several ways.
 */
const STRICT = /^(?:[\w-]{4})*(?:[\w-][AQgw]|[\w-]{2}[AEIMQUYcgkosw048])?$/;

/** The bytes, or null for anything but the one canonical spelling. */
export function decodeBase64url(text: string): Uint8Array<ArrayBuffer> | null {
  if (!STRICT.test(text)) return null;
  const binary = atob(text.replaceAll('-', '+').replaceAll('_', '/'));
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}
