import { Secret, TOTP } from 'otpauth';
import type { SecretKey } from '../../credentials/seal.ts';

/** The parameters that apps support. HMAC-SHA-1 is still secure for this use (RFC 4226 appendix B.2). */
const PARAMETERS = { algorithm: 'SHA1', digits: 6, period: 30 };
/** Number of steps before and after the current one that are accepted, for clock skew and slow typing. */
const WINDOW = 1;
/** The length of an HMAC-SHA-1 (RFC 4226 section 4, R6). */
const SECRET_BITS = 160;

/**
 * The time step (RFC 6238 section 4.2) of the code; null when the code is wrong or outside the window.
 * @param code ASCII
 */
export function stepOf(secret: string, code: string, now: Date): number | null {
  const timestamp = now.getTime();
  const delta = new TOTP({ ...PARAMETERS, secret }).validate({ token: code, timestamp, window: WINDOW });
  return delta === null ? null : TOTP.counter({ period: PARAMETERS.period, timestamp }) + delta;
}

/** The `otpauth:` URI that apps read a secret from. @param label the user's e-mail address */
export const totpUri = (secret: string, { issuer, label }: { issuer: string; label: string }): string =>
  new TOTP({ ...PARAMETERS, secret, issuer, label }).toString();

/**
 * The secret that a pre-auth token enrols. It is derived (RFC 5869), because nothing is stored before it is confirmed.
 * @returns base32
 */
export async function setUpSecret([key]: readonly SecretKey[], preAuthId: string): Promise<string> {
  if (!key) throw new Error('CREDENTIAL_KEYS has no key');
  const material = await crypto.subtle.importKey('raw', key.bytes, 'HKDF', false, ['deriveBits']);
  const info = new TextEncoder().encode(`second factor of ${preAuthId}`);
  const derivation = { name: 'HKDF', hash: 'SHA-256', salt: new Uint8Array(), info };
  return new Secret({ buffer: await crypto.subtle.deriveBits(derivation, material, SECRET_BITS) }).base32;
}
