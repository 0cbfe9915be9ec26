import { z } from 'zod';

const LOOPBACK = /^http:\/\/(?:localhost|127\.0\.0\.1)(?::([1-9]\d{0,4}))?\/auth\/callback$/;
const PORT_MAX = 65_535;

/** The code goes to this address, so it is taken as written: nothing that a parser would have to read into one. */
export const LoopbackRedirect = z
  .string()
  .regex(LOOPBACK)
  .refine((address) => Number(LOOPBACK.exec(address)?.[1] ?? 80) <= PORT_MAX, 'A port is at most 65535')
  .meta({
    description: 'Where the command line listens (RFC 8252 section 7.3): any port, this path.',
    example: 'http://127.0.0.1:49152/auth/callback',
  });
