import { and, eq, type SQL } from 'drizzle-orm';
import { Secret, TOTP } from 'otpauth';
import type { PreAuth } from '../authentication/own-tokens.ts';
import { sha256 } from '../crypto/encoding.ts';
import type { SecretKey } from '../crypto/seal.ts';
import { type Database, insertIf, type Statement } from '../database/database.ts';
import { recoveryCodes, secondFactors } from '../database/people-schema.ts';
import type { UserKey } from '../rate-limits/buckets.ts';
import type { Settings } from '../settings.ts';
import type { SignInContext } from './sign-in-context.ts';

/** A request with the pre-auth token of a user who has passed the first factor. */
export interface SecondFactorContext extends SignInContext {
  preAuth: PreAuth;
}

export const secondFactorOf = (db: Database, { issuer, gid }: UserKey) =>
  db
    .select()
    .from(secondFactors)
    .where(and(eq(secondFactors.issuer, issuer), eq(secondFactors.gid, gid)));

/** The associated data under which the secret of an app is sealed. */
export const secretSealContext = ({ issuer, gid }: UserKey) => ['second_factor', issuer, gid];

/**
 * The step that follows a first factor for a user without a second one. A user who has one always needs it.
 */
export const STEP_WITHOUT_FACTOR: Record<
  Settings['TWO_FACTOR'],
  Record<PreAuth['first_factor'], 'setup' | null>
> = {
  off: { password: null, email: null },
  prompt: { password: 'setup', email: null },
  required: { password: 'setup', email: 'setup' },
};

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
 * The secret that a pre-auth token enrols. It is derived (RFC 5869), because nothing is stored before it is
 * confirmed.
 * @returns base32
 */
export async function setUpSecret([key]: readonly SecretKey[], preAuthId: string): Promise<string> {
  if (!key) throw new Error('CREDENTIAL_KEYS has no key');
  const material = await crypto.subtle.importKey('raw', key.bytes, 'HKDF', false, ['deriveBits']);
  const info = new TextEncoder().encode(`second factor of ${preAuthId}`);
  const derivation = { name: 'HKDF', hash: 'SHA-256', salt: new Uint8Array(), info };
  return new Secret({ buffer: await crypto.subtle.deriveBits(derivation, material, SECRET_BITS) }).base32;
}

const COUNT = 10;
/** Characters of base32 (RFC 4648): 80 bits, which a fast hash protects sufficiently. */
const LENGTH = 16;
const ALPHABET = 'abcdefghijklmnopqrstuvwxyz234567';
const GROUP = /.{4}(?!$)/g;

/** Letters, digits, and the separators that people type. */
export const RECOVERY_CODE = /^[ -]*(?:[A-Za-z2-7][ -]*){16}$/;

/** A recovery code as it is hashed: without separators, in lower case. */
export const plainCode = (code: string) => code.replaceAll(/[ -]/g, '').toLowerCase();

const ofUser = ({ issuer, gid }: UserKey) =>
  and(eq(recoveryCodes.issuer, issuer), eq(recoveryCodes.gid, gid));

export const newRecoveryCode = () =>
  [...crypto.getRandomValues(new Uint8Array(LENGTH))]
    .map((byte) => ALPHABET[byte % ALPHABET.length])
    .join('')
    .replaceAll(GROUP, '$&-');

export interface NewRecoveryCodes {
  /** Shown once. */
  codes: string[];
  /** Replaces the codes of the user, if `condition` is true. */
  statements(condition: SQL): Statement[];
}

export async function newRecoveryCodes(db: Database, { issuer, gid }: UserKey): Promise<NewRecoveryCodes> {
  const codes = Array.from({ length: COUNT }, newRecoveryCode);
  const hashes = await Promise.all(codes.map((code) => sha256(plainCode(code))));
  return {
    codes,
    statements: (condition) => [
      db.delete(recoveryCodes).where(and(ofUser({ issuer, gid }), condition)),
      ...hashes.map((hash) => insertIf(db, recoveryCodes, { issuer, gid, hash }, condition)),
    ],
  };
}

export const deleteRecoveryCodes = (db: Database, user: UserKey) =>
  db.delete(recoveryCodes).where(ofUser(user));

/**
 * Uses up a code. Of two requests with the same code, one deletes its row.
 * @returns whether the code was right
 */
export async function useRecoveryCode(db: Database, user: UserKey, code: string): Promise<boolean> {
  const hash = await sha256(plainCode(code));
  const { meta } = await db
    .delete(recoveryCodes)
    .where(and(ofUser(user), eq(recoveryCodes.hash, hash)))
    .run();
  return meta.changes === 1;
}
