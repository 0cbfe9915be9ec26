import { z } from 'zod';

/** The path is stored in a cookie, which browsers limit to 4,096 bytes. */
const LENGTH_MAX = 512;

/** Browsers remove tabs and line breaks from addresses and read `\` as `/`, so these could begin a host name. */
const STARTS_LIKE_HOST = /^\/[/\\]/;
const CONTROL_CHARACTER = /\p{Cc}/u;

const staysOnOrigin = (path: string) =>
  path.startsWith('/') && !STARTS_LIKE_HOST.test(path) && !CONTROL_CHARACTER.test(path);

/** Whether this is a path on the client's own origin, both as written and percent-decoded. */
function isReturnPath(text: string): boolean {
  try {
    return staysOnOrigin(text) && staysOnOrigin(decodeURIComponent(text));
  } catch {
    // A percent sign that encodes nothing.
    return false;
  }
}

/** The path where a client continues after the sign-in, on its own origin. */
export const ReturnTo = z
  .string()
  .max(LENGTH_MAX)
  .refine(isReturnPath, 'Expected a path on this origin, without a host or control characters')
  .meta({
    description:
      'A path in your application to continue at. The response of the callback returns it as `state`.',
    example: '/projects',
  });
