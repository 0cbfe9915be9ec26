import { verifyAsync } from '@noble/ed25519';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { decodeBase64url, parseJson } from '../crypto/encoding.ts';
import { rejected } from './rejection.ts';

/** Tolerated lead of the provider's clock (specification 2.8). It applies to `nbf` only. */
const SKEW_MS = 30_000;

/** An RFC 3339 timestamp, as in PASETO, or Unix seconds, as in JWT. */
const Timestamp = z
  .union([z.iso.datetime({ offset: true }), z.number().transform((seconds) => seconds * 1000)])
  .pipe(z.coerce.date());

const Text = z.string().min(1).max(320);

/** The claims of specification 2.8. Other claims are ignored. */
const Claims = z.object({
  gid: Text,
  email: Text,
  role: Text,
  scp: z.array(z.string()).default([]),
  exp: Timestamp,
  nbf: Timestamp.optional(),
  iat: Timestamp.optional(),
  ctx: z.object({ tenant_id: Text.nullish() }).nullish(),
});

export type Claims = z.output<typeof Claims>;

/** The claims of a message whose signature was verified. @returns or UNAUTHENTICATED */
export function readClaims(message: Uint8Array): Result<Claims, Failure> {
  const reading = Claims.safeParse(parseJson(message));
  if (!reading.success) return rejected('claims_wrong');
  return ok(reading.data);
}

/** The claims, or UNAUTHENTICATED when the token is no longer, or not yet, valid. */
export function checkTimes(claims: Claims, now: Date): Result<Claims, Failure> {
  const { exp, nbf } = claims;
  if (exp.getTime() <= now.getTime()) return rejected('token_expired');
  if (nbf && nbf.getTime() > now.getTime() + SKEW_MS) return rejected('token_not_yet_valid');
  return ok(claims);
}

/** The prefix of PASETO version 4 public tokens. */
export const PASETO_HEADER = 'v4.public.';

const SIGNATURE_BYTES = 64;

/** The decoded parts of a `v4.public` token; not trustworthy before the signature is verified. */
export interface PasetoParts {
  message: Uint8Array;
  signature: Uint8Array;
  /** Empty when the token has none. */
  footer: Uint8Array;
}

/**
 * Splits `v4.public.<message and signature>[.<footer>]` (specification 5.1).
 * @returns or UNAUTHENTICATED
 */
export function splitPaseto(token: string): Result<PasetoParts, Failure> {
  if (!token.startsWith(PASETO_HEADER)) return rejected('token_form_wrong');
  const [body, footer, ...more] = token.slice(PASETO_HEADER.length).split('.').map(decodeBase64url);
  // A trailing dot would be a second encoding of a token without a footer.
  if (!body || footer === null || footer?.length === 0 || more.length > 0)
    return rejected('token_form_wrong');
  if (body.length <= SIGNATURE_BYTES) return rejected('token_form_wrong');
  return ok({
    message: body.subarray(0, -SIGNATURE_BYTES),
    signature: body.subarray(-SIGNATURE_BYTES),
    footer: footer ?? new Uint8Array(),
  });
}

/** The footer is parsed before the signature is checked, so its size is limited. */
const FOOTER_MAX_BYTES = 1024;

const Footer = z.object({
  kid: z.string().min(1),
  alg: z.literal('v4.public').optional(),
  typ: z.literal('paseto').optional(),
});

/**
 * The id of the signing key, as claimed by the token (specification 5.1).
 * @returns or UNAUTHENTICATED
 */
export function keyIdOf(footer: Uint8Array): Result<string, Failure> {
  if (footer.length === 0) return rejected('footer_missing');
  if (footer.length > FOOTER_MAX_BYTES) return rejected('footer_too_long');
  const reading = Footer.safeParse(parseJson(footer));
  if (!reading.success) return rejected('footer_wrong');
  return ok(reading.data.kid);
}

const utf8 = new TextEncoder();
const LENGTH_BYTES = 8;

/**
 * PASETO's pre-authentication encoding: the number of pieces, then each piece after its length, all counts as
 * unsigned 64-bit little-endian. It makes the boundaries between pieces unambiguous.
 */
export function preAuthEncode(pieces: readonly Uint8Array[]): Uint8Array {
  const total = pieces.reduce((sum, piece) => sum + LENGTH_BYTES + piece.length, LENGTH_BYTES);
  const encoded = new Uint8Array(total);
  const view = new DataView(encoded.buffer);
  view.setBigUint64(0, BigInt(pieces.length), true);
  let at = LENGTH_BYTES;
  for (const piece of pieces) {
    view.setBigUint64(at, BigInt(piece.length), true);
    encoded.set(piece, at + LENGTH_BYTES);
    at += LENGTH_BYTES + piece.length;
  }
  return encoded;
}

/**
 * Whether the key signed these parts (PASETO version 4, Ed25519). Verification follows RFC 8032 strictly: ZIP
 * 215 accepts point encodings and small-order keys with which one signature is valid for several messages.
 * @param implicitAssertion data that the signature covers but the token does not contain; our provider uses
 *   none
 */
export const isSignedBy = (
  publicKey: Uint8Array,
  { message, signature, footer }: PasetoParts,
  implicitAssertion: Uint8Array = new Uint8Array(),
): Promise<boolean> =>
  verifyAsync(
    signature,
    preAuthEncode([utf8.encode(PASETO_HEADER), message, footer, implicitAssertion]),
    publicKey,
    { zip215: false },
  );
