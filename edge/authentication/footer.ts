import { z } from 'zod';
import { parseJson } from './json.ts';
import { rejected } from './rejection.ts';

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
