import ipaddr from 'ipaddr.js';

const URL_MAX_LENGTH = 2048;
/** Names that resolve within a network only (RFC 6761, RFC 6762, RFC 8375, and the private-use domain of ICANN). */
const LOCAL_NAME = /(?:^|\.)(?:localhost|local|internal|home\.arpa)$/;

type Destination = 'public' | 'loopback' | 'private';

/** @param host as `URL` normalizes it: `0x7f.1` is `127.0.0.1` there, and an IPv6 address has brackets */
function destinationOf(host: string): Destination {
  const name = host.replace(/^\[|\]$/g, '').replace(/\.$/, '');
  if (ipaddr.isValid(name)) {
    // An IPv4 address inside an IPv6 one (`::ffff:10.0.0.1`) counts as itself.
    const range = ipaddr.process(name).range();
    return range === 'unicast' ? 'public' : range === 'loopback' ? 'loopback' : 'private';
  }
  if (name === 'localhost') return 'loopback';
  return LOCAL_NAME.test(name) || !name.includes('.') ? 'private' : 'public';
}

/** The local stack is the only gateway whose own address is a loopback address. */
export const isLocalGateway = ({ BASE_URL }: { BASE_URL: string }): boolean =>
  destinationOf(new URL(BASE_URL).hostname) === 'loopback';

/**
 * Why a webhook may not have this URL; null if it may. A tenant could otherwise make the gateway call addresses that
 * only it can reach. A public name that resolves to a private address is not recognised here: the runtime's network
 * refuses that (`docs/events.md`).
 * @param local the local stack, where loopback addresses and http are allowed
 */
export function refusalOfUrl(text: string, local: boolean): string | null {
  if (text.length > URL_MAX_LENGTH || !URL.canParse(text)) return 'Invalid URL.';
  const url = new URL(text);
  const destination = destinationOf(url.hostname);
  const isLoopback = local && destination === 'loopback';
  if (url.protocol !== 'https:' && !(isLoopback && url.protocol === 'http:')) return 'The URL must be https.';
  if (url.username !== '' || url.password !== '') return 'The URL must not contain a user name or password.';
  if (destination !== 'public' && !isLoopback) return 'The URL must not be a local or private address.';
  return null;
}
