import { z } from 'zod';

/**
 * The handshake that opens a link: challenge → answer → welcome or refusal.
 * Challenge and refusal let unknown fields pass: an agent must be able to read why a newer edge refuses it.
 */

/** 32 random bytes; an answer to any other nonce is a replay. */
const Nonce = z.string().regex(/^[A-Za-z0-9_-]{43}$/);
/** Orders the links of one host: the newest is the live one. */
const Epoch = z.int().nonnegative();
const Protocol = z.int().positive();

export const Challenge = z.object({
  type: z.literal('challenge'),
  protocol: Protocol,
  nonce: Nonce,
  /** Newest epoch the edge has seen of this host; the answer's must be above. */
  epoch: Epoch,
});

export const Answer = z.strictObject({
  type: z.literal('answer'),
  /** A JWT (RFC 7519) signed with the host's key: EdDSA over Ed25519 (RFC 8037). */
  token: z.string().max(2048),
});

/** `typ` of the answer's header: no token made for another purpose passes for one. */
export const ANSWER_TYPE = 'branchgate-link+jwt';

/** How long after its making an answer may be used, in seconds. */
export const ANSWER_LIFETIME = 60;

export const AnswerClaims = z.strictObject({
  /** The host's id. */
  iss: z.uuid(),
  /** Host and port the agent dialled: an answer that a false gateway took in is of no use at the true one. */
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
  /** A key of `REFUSALS`, or one that a newer edge has added. */
  reason: z.string().max(64),
});

/** Why an answer is refused, in words for the agent's log. */
export const REFUSALS = {
  signature: 'the answer is not signed with the key this host was enrolled with',
  audience: 'the agent dialled another name than the one the gateway was reached by',
  clock: "the host's clock is off by minutes",
  nonce: 'the answer belongs to another challenge',
  protocol: 'agent and gateway speak different versions of the protocol',
  stale_epoch: 'a newer link of this host has been seen',
} as const;

export type RefusalReason = keyof typeof REFUSALS;
