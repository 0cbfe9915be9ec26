import { and, eq, type SQL } from 'drizzle-orm';
import { recoveryCodes } from '../../database/account-schema.ts';
import { type Database, insertIf, type Statement } from '../../database/database.ts';
import type { UserKey } from '../../rate-limits/buckets.ts';
import { sha256 } from '../../sha256.ts';

const COUNT = 10;
/** Characters of base32 (RFC 4648): 80 bits, which a fast hash protects sufficiently. */
const LENGTH = 16;
const ALPHABET = 'abcdefghijklmnopqrstuvwxyz234567';
const GROUP = /.{4}(?!$)/g;

/** Letters, digits, and the separators that people type. */
export const RECOVERY_CODE = /^[ -]*(?:[A-Za-z2-7][ -]*){16}$/;

/** A code as it is hashed: without separators, in lower case. */
const plain = (code: string) => code.replaceAll(/[ -]/g, '').toLowerCase();

const ofUser = ({ issuer, gid }: UserKey) =>
  and(eq(recoveryCodes.issuer, issuer), eq(recoveryCodes.gid, gid));

const newCode = () =>
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
  const codes = Array.from({ length: COUNT }, newCode);
  const hashes = await Promise.all(codes.map((code) => sha256(plain(code))));
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

/** Uses up a code. Of two requests with the same code, one deletes its row. @returns whether the code was right */
export async function useRecoveryCode(db: Database, user: UserKey, code: string): Promise<boolean> {
  const hash = await sha256(plain(code));
  const { meta } = await db
    .delete(recoveryCodes)
    .where(and(ofUser(user), eq(recoveryCodes.hash, hash)))
    .run();
  return meta.changes === 1;
}
