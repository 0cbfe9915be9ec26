import { type CryptoKey, exportJWK, generateKeyPair, SignJWT } from 'jose';
import { PublicKey } from '../../../shared/protocol/enrolment.ts';
import { ANSWER_LIFETIME, ANSWER_TYPE } from '../../../shared/protocol/handshake.ts';
import { PROTOCOL_VERSION } from '../../../shared/protocol/version.ts';

export interface HostKey {
  publicKey: PublicKey;
  privateKey: CryptoKey;
}

export async function makeHostKey(): Promise<HostKey> {
  const { publicKey, privateKey } = await generateKeyPair('EdDSA', { crv: 'Ed25519', extractable: true });
  return { publicKey: PublicKey.parse(await exportJWK(publicKey)), privateKey };
}

export interface AnswerInput {
  iss: string;
  aud: string;
  nonce: string;
  epoch: number;
  /** Unix seconds. */
  iat: number;
  [claim: string]: unknown;
}

/** An answer to the handshake's challenge. Tests vary its claims and header. */
export const signAnswer = (
  key: CryptoKey | Uint8Array,
  claims: AnswerInput,
  header: Record<string, string> = {},
) =>
  new SignJWT({ protocol: PROTOCOL_VERSION, exp: claims.iat + ANSWER_LIFETIME, ...claims })
    .setProtectedHeader({ alg: 'EdDSA', typ: ANSWER_TYPE, ...header })
    .sign(key);
