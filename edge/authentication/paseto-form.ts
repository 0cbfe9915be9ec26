import { z } from 'zod';
import { decodeBase64url } from './base64url.ts';
import { parseJson } from './json.ts';
import { rejected } from './rejection.ts';

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

/** Splits `v4.public.<message and signature>[.<footer>]` (specification 5.1). @throws ApiError UNAUTHENTICATED */
export function splitPaseto(token: string): PasetoParts {
  if (!token.startsWith(PASETO_HEADER)) throw rejected('token_form_wrong');
  const [body, footer, ...more] = token.slice(PASETO_HEADER.length).split('.').map(decodeBase64url);
  // A trailing dot would be a second encoding of a token without a footer.
  if (!body || footer === null || footer?.length === 0 || more.length > 0) throw rejected('token_form_wrong');
  if (body.length <= SIGNATURE_BYTES) throw rejected('token_form_wrong');
  return {
    message: body.subarray(0, -SIGNATURE_BYTES),
    signature: body.subarray(-SIGNATURE_BYTES),
    footer: footer ?? new Uint8Array(),
  };
}

/** The footer is parsed before the signature is checked, so its size is limited. */
const FOOTER_MAX_BYTES = 1024;

const Footer = z.object({
  kid: z.string().min(1),
  alg: z.literal('v4.public').optional(),
  typ: z.literal('paseto').optional(),
});

/** The id of the signing key, as claimed by the token (specification 5.1). @throws ApiError UNAUTHENTICATED */
export function keyIdOf(footer: Uint8Array): string {
  if (footer.length === 0) throw rejected('footer_missing');
  if (footer.length > FOOTER_MAX_BYTES) throw rejected('footer_too_long');
  const reading = Footer.safeParse(parseJson(footer));
  if (!reading.success) throw rejected('footer_wrong');
  return reading.data.kid;
}
