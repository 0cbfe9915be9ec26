import { z } from 'zod';
import { readCidr } from '../../shared/cidr.ts';

/** A network in a request; parses to its canonical form. */
export const Cidr = z
  .string()
  .max(64)
  .transform((text, context) => {
    const reading = readCidr(text.trim());
    if (reading.ok) return reading.cidr;
    context.addIssue({ code: 'custom', message: reading.message });
    return z.NEVER;
  })
  .meta({
    description: 'An IPv4 or IPv6 network in CIDR notation, or a single address.',
    example: '203.0.113.0/24',
  });
