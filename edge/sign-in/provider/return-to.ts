import { z } from 'zod';

/** It travels in a cookie, of which browsers keep 4,096 bytes. */
const LENGTH_MAX = 512;

/** Browsers drop tabs and line breaks from addresses and take `\` for `/`, so these could start a host. */
const STARTS_LIKE_HOST = /^\/[/\\]/;
const CONTROL_CHARACTER = /\p{Cc}/u;

const staysHere = (path: string) =>
  path.startsWith('/') && !STARTS_LIKE_HOST.test(path) && !CONTROL_CHARACTER.test(path);

/** Whether this is a path of the client's own origin, as written and as somebody on the way may decode it. */
function isReturnPath(text: string): boolean {
  try {
    return staysHere(text) && staysHere(decodeURIComponent(text));
  } catch {
    // Percent signs that encode nothing.
    return false;
  }
}

/** Where a client wants to go on after the sign-in: a path of its own origin. */
export const ReturnTo = z
  .string()
  .max(LENGTH_MAX)
  .refine(isReturnPath, 'A path on this origin: no host, no control characters')
  .meta({
    description: 'A path of yours to go on at; the answer to the callback has it as `state`.',
    example: '/projects',
  });
