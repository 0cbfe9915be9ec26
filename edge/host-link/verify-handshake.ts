import { errors, importJWK, jwtVerify } from 'jose';
import type { PublicKey } from '../../shared/protocol/enrolment.ts';
import {
  ANSWER_LIFETIME,
  ANSWER_TYPE,
  AnswerClaims,
  type RefusalReason,
} from '../../shared/protocol/handshake.ts';
import { PREVIOUS_VERSION, PROTOCOL_VERSION } from '../../shared/protocol/version.ts';

/** Tolerated clock difference of a host, in seconds. The nonce proves freshness; the times are a second check. */
const CLOCK_TOLERANCE = 300;

export interface Expected {
  hostId: string;
  /** Host and port of the URL that the agent connected to. */
  audience: string;
  nonce: string;
  publicKey: PublicKey;
}

export type HandshakeResult =
  | { ok: true; epoch: number; protocol: number }
  | { ok: false; reason: RefusalReason };

const ACCEPTED: readonly number[] = [PROTOCOL_VERSION, PREVIOUS_VERSION];

/** The refusal reason of each claim that jose can reject. */
const REASON_OF_CLAIM: Record<string, RefusalReason> = { aud: 'audience', iat: 'clock', exp: 'clock' };

/**
 * Verifies the `answer` to a challenge. The caller checks whether its epoch is new enough.
 * @param now Unix milliseconds
 */
export async function verifyHandshake(
  token: string,
  expected: Expected,
  now: number,
): Promise<HandshakeResult> {
  let claims: AnswerClaims;
  try {
    const verified = await jwtVerify(token, await importJWK(expected.publicKey, 'EdDSA'), {
      algorithms: ['EdDSA'],
      typ: ANSWER_TYPE,
      issuer: expected.hostId,
      audience: expected.audience,
      currentDate: new Date(now),
      maxTokenAge: ANSWER_LIFETIME,
      clockTolerance: CLOCK_TOLERANCE,
    });
    claims = AnswerClaims.parse(verified.payload);
  } catch (error) {
    return { ok: false, reason: refusalReason(error) };
  }
  if (claims.nonce !== expected.nonce) return { ok: false, reason: 'nonce' };
  if (!ACCEPTED.includes(claims.protocol)) return { ok: false, reason: 'protocol' };
  return { ok: true, epoch: claims.epoch, protocol: claims.protocol };
}

function refusalReason(error: unknown): RefusalReason {
  const isClaim = error instanceof errors.JWTClaimValidationFailed || error instanceof errors.JWTExpired;
  return (isClaim && REASON_OF_CLAIM[error.claim]) || 'signature';
}
