import { z } from 'zod';

/**
 * The handshake that opens a link: challenge → answer → welcome or refusal.
 * Challenge and refusal allow unknown fields, so that an agent can read why a newer edge refuses it.
 */

/** 32 random bytes; an answer to any other nonce is a replay. */
const Nonce = z.string().regex(/^[A-Za-z0-9_-]{43}$/);
/** Orders the links of one host: the one with the highest epoch is live. */
const Epoch = z.int().nonnegative();
const Protocol = z.int().positive();

export const Challenge = z.object({
  type: z.literal('challenge'),
  protocol: Protocol,
  nonce: Nonce,
  /** Highest epoch that the edge has seen from this host; the answer's must be higher. */
  epoch: Epoch,
});

export const Answer = z.strictObject({
  type: z.literal('answer'),
  /** A JWT (RFC 7519) signed with the host's key: EdDSA over Ed25519 (RFC 8037). */
  token: z.string().max(2048),
});

/** `typ` of the answer's header, so that no token for another purpose is accepted (RFC 8725 section 3.11). */
export const ANSWER_TYPE = 'branchgate-link+jwt';

/** Validity of an answer in seconds. */
export const ANSWER_LIFETIME = 60;

export const AnswerClaims = z.strictObject({
  /** The host's id. */
  iss: z.uuid(),
  /**
   * Host and port that the agent dialled, so that an impostor gateway cannot forward the answer to the real
   * one.
   */
  aud: z.string(),
  nonce: Nonce,
  epoch: Epoch,
  protocol: Protocol,
  iat: z.int(),
  exp: z.int(),
});
export type AnswerClaims = z.output<typeof AnswerClaims>;

export const Welcome = z.strictObject({ type: z.literal('welcome'), epoch: Epoch });

export const Refusal = z.object({
  type: z.literal('refusal'),
  /** A key of `REFUSALS`, or one that a newer edge added. */
  reason: z.string().max(64),
});

/** Why an answer was refused, for the agent's log. */
export const REFUSALS = {
  signature: 'the signature does not match the key of this host: enrol the host again',
  audience: 'the address that the agent dialled is not the one that reached the gateway: correct GATEWAY_URL',
  clock: "the host's clock is off by minutes: synchronise it",
  nonce: 'the answer is for another challenge',
  protocol: 'agent and gateway use different protocol versions: upgrade the older one',
  stale_epoch: 'a newer link of this host exists: stop the other agent with this identity',
} as const;

export type RefusalReason = keyof typeof REFUSALS;
