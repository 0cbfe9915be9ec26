import { verifyAsync } from '@noble/ed25519';
import { PASETO_HEADER, type PasetoParts } from './paseto-form.ts';

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
 * Whether the key signed these parts (PASETO version 4, Ed25519). Verification follows RFC 8032 strictly: ZIP 215
 * accepts point encodings and small-order keys with which one signature is valid for several messages.
 * @param implicitAssertion data that the signature covers but the token does not contain; our provider uses none
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
