import { z } from 'zod';

/** Public half of a host's key: an Ed25519 JWK (RFC 8037) without further members. */
export const PublicKey = z.strictObject({
  kty: z.literal('OKP'),
  crv: z.literal('Ed25519'),
  x: z.string().regex(/^[A-Za-z0-9_-]{43}$/),
});
export type PublicKey = z.output<typeof PublicKey>;

/** `POST /agent/v1/enrol`: registers the key with the one-time token that the platform route returned. */
export const EnrolmentRequest = z.strictObject({
  enrolment_token: z.string().regex(/^[A-Za-z0-9_-]{43}$/),
  public_key: PublicKey,
});
export type EnrolmentRequest = z.output<typeof EnrolmentRequest>;

export const EnrolmentReply = z.strictObject({ host_id: z.uuid() });

export const ENROLMENT_PATH = '/agent/v1/enrol';
/** Path of the WebSocket upgrade; the query contains `host_id`. */
export const LINK_PATH = '/agent/v1/link';
