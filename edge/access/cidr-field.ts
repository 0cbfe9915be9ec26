import { z } from 'zod';
import { readCidr } from '../../shared/cidr.ts';

/** In place of a network: the address of the request. */
export const OWN_ADDRESS = 'me';

const Text = z.string().max(64);
const EXAMPLE = '203.0.113.0/24';

function canonical(text: string, context: z.RefinementCtx): string {
  const reading = readCidr(text.trim());
  if (reading.ok) return reading.cidr;
  context.addIssue({ code: 'custom', message: reading.message });
  return z.NEVER;
}

/** A network in a request; parses to its canonical form. */
export const Cidr = Text.transform(canonical).meta({
  description: 'An IPv4 or IPv6 network in CIDR notation, or a single address.',
  example: EXAMPLE,
});

/** As `Cidr`, or `me`, which stays as it is. */
export const CidrOrMe = Text.transform((text, context) =>
  text === OWN_ADDRESS ? text : canonical(text, context),
).meta({
  description:
    'An IPv4 or IPv6 network in CIDR notation, a single address, or `me`: the address of the request.',
  example: EXAMPLE,
});
