import { destinationOf } from '../destination.ts';

/**
 * The addresses that codes are sent to. An attacker whose address passes as that of a client gets the code, so nothing is
 * left to how a URL parser repairs a text (RFC 9700 section 4.1). No I/O.
 */

const REDIRECT_URI_LENGTH_MAX = 512;

/** Names of the computer that the browser runs on, on which a native client listens (RFC 8252 section 7.3). */
const LOOPBACK: readonly string[] = ['localhost', '127.0.0.1', '[::1]'];

export const isLoopbackUri = (uri: string): boolean => LOOPBACK.includes(new URL(uri).hostname);

/** What is wrong with a redirect URI; null if nothing is. */
export function redirectUriProblem(text: string): string | null {
  if (text.length > REDIRECT_URI_LENGTH_MAX) return `is longer than ${REDIRECT_URI_LENGTH_MAX} characters`;
  if (!URL.canParse(text)) return 'is not a URL';
  const url = new URL(text);
  if (url.href !== text && url.href !== `${text}/`) return `is not in its normal form, which is ${url.href}`;
  if (url.username || url.password) return 'must name no user';
  if (text.includes('#')) return 'must have no fragment';
  if (url.protocol === 'https:') return null;
  const isLocal = url.protocol === 'http:' && LOOPBACK.includes(url.hostname);
  return isLocal && destinationOf(url) === 'loopback'
    ? null
    : 'must be https, or http on the loopback address';
}

function withoutPort(uri: string): string {
  const url = new URL(uri);
  url.port = '';
  return url.href;
}

/**
 * Whether a client may be sent to this address. It has to be one of the client's, character by character, save for the port
 * of a loopback address, which the system of a native client chooses.
 * @param registered of the client, without a problem
 */
export const isRedirectOf = (registered: readonly string[], uri: string): boolean =>
  registered.includes(uri) ||
  (new URL(uri).protocol === 'http:' && registered.some((known) => withoutPort(known) === withoutPort(uri)));
