import { z } from 'zod';
import { decodeBase64url } from './base64url.ts';

const PASERK_HEADER = 'k4.public.';
const KEY_BYTES = 32;

const Ed25519Key = z.string().transform((encoded, context) => {
  const bytes = decodeBase64url(encoded);
  if (bytes?.length === KEY_BYTES) return bytes;
  context.addIssue('not 32 bytes in base64url');
  return z.NEVER;
});

/** An Ed25519 public key in PASERK, `k4.public.…`. */
export const Paserk = z
  .string()
  .startsWith(PASERK_HEADER)
  .transform((text) => text.slice(PASERK_HEADER.length))
  .pipe(Ed25519Key);

const KeyId = z.string().min(1);

const PasetoEntry = z
  .object({ kid: KeyId, alg: z.literal('v4.public'), public_key: Paserk })
  .transform(({ kid, public_key }) => ({ kid, publicKey: public_key }));

/** RFC 8037. */
const JwkEntry = z
  .object({ kid: KeyId, kty: z.literal('OKP'), crv: z.literal('Ed25519'), x: Ed25519Key })
  .transform(({ kid, x }) => ({ kid, publicKey: x }));

const Entry = z.union([PasetoEntry, JwkEntry]);
const KeyDocument = z.object({ keys: z.array(z.unknown()) });

/** Ed25519 public keys by `kid`. */
export type PublicKeys = ReadonlyMap<string, Uint8Array>;

/**
 * Parses the provider's key document: PASERK entries, or a JWK set. Keys of other kinds are skipped. An empty list
 * is accepted and withdraws all keys; a list without any usable key is not.
 * @throws Error when the document is malformed
 */
export function readKeyDocument(document: unknown): PublicKeys {
  const { keys } = KeyDocument.parse(document);
  const readable = keys.flatMap((entry) => Entry.safeParse(entry).data ?? []);
  if (keys.length > 0 && readable.length === 0) throw new Error('the key document contains no usable key');
  return new Map(readable.map(({ kid, publicKey }) => [kid, publicKey]));
}

/** Whether both contain the same keys under the same ids. */
export function sameKeys(one: PublicKeys, other: PublicKeys): boolean {
  if (one.size !== other.size) return false;
  return [...one].every(([kid, key]) => {
    const otherKey = other.get(kid);
    return otherKey !== undefined && key.every((byte, at) => byte === otherKey[at]);
  });
}
