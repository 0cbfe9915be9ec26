import { z } from 'zod';
import { parseJson } from './json.ts';
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

/** The claims of a message whose signature was verified. @throws ApiError UNAUTHENTICATED */
export function readClaims(message: Uint8Array): Claims {
  const reading = Claims.safeParse(parseJson(message));
  if (!reading.success) throw rejected('claims_wrong');
  return reading.data;
}

/** @throws ApiError UNAUTHENTICATED when the token is no longer, or not yet, valid */
export function checkTimes({ exp, nbf }: Claims, now: Date): void {
  if (exp.getTime() <= now.getTime()) throw rejected('token_expired');
  if (nbf && nbf.getTime() > now.getTime() + SKEW_MS) throw rejected('token_not_yet_valid');
}
