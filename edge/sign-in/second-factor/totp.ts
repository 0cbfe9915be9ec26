import { Secret, TOTP } from 'otpauth';
import type { SecretKey } from '../../credentials/seal.ts';

/** What apps understand: RFC 6238 with HMAC-SHA-1, which still holds for this use (RFC 4226 appendix B.2). */
const FORM = { algorithm: 'SHA1', digits: 6, period: 30 };
/** Steps before and after this one whose codes are taken: clocks differ, and a code takes time to type. */
const WINDOW = 1;
/** As long as HMAC-SHA-1's output (RFC 4226 section 4, R6). */
const SECRET_BITS = 160;

/**
 * The time step (RFC 6238 section 4.2) that the code belongs to; null for a code of none that counts now.
 * @param code ASCII
 */
export function stepOf(secret: string, code: string, now: Date): number | null {
  const timestamp = now.getTime();
  const delta = new TOTP({ ...FORM, secret }).validate({ token: code, timestamp, window: WINDOW });
  return delta === null ? null : TOTP.counter({ period: FORM.period, timestamp }) + delta;
}

/** The `otpauth:` address that apps take a secret from. @param label the user's e-mail address */
export const totpUri = (secret: string, { issuer, label }: { issuer: string; label: string }): string =>
  new TOTP({ ...FORM, secret, issuer, label }).toString();

/**
 * The secret that a pre-auth token sets up: derived (RFC 5869), because nothing is kept before it is confirmed.
 * @returns base32
 */
export async function setUpSecret([key]: readonly SecretKey[], preAuthId: string): Promise<string> {
  if (!key) throw new Error('no key to derive from');
  const material = await crypto.subtle.importKey('raw', key.bytes, 'HKDF', false, ['deriveBits']);
  const info = new TextEncoder().encode(`second factor of ${preAuthId}`);
  const derivation = { name: 'HKDF', hash: 'SHA-256', salt: new Uint8Array(), info };
  return new Secret({ buffer: await crypto.subtle.deriveBits(derivation, material, SECRET_BITS) }).base32;
}
