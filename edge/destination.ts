import ipaddr from 'ipaddr.js';

/** Names that only a local network resolves (RFC 6761, 6762, 8375, and endings in common use). */
const LOCAL_NAMES = /(?:^|\.)(?:localhost|local|internal|intranet|lan|home|corp|private|home\.arpa)$/;

type Destination = 'public' | 'loopback' | 'private';

/**
 * Where a URL leads that a tenant has chosen and the gateway calls: a private address would let the tenant
 * reach what only the gateway can reach. A public name that resolves to a private address is not recognised
 * here; the runtime's network refuses that (`docs/events.md`).
 */
export function destinationOf({ hostname }: URL): Destination {
  // `URL` has normalized other spellings: `0x7f.1` is `127.0.0.1` there, and an IPv6 address has brackets.
  const name = hostname.replace(/^\[|\]$/g, '').replace(/\.$/, '');
  if (ipaddr.isValid(name)) {
    // An IPv4 address inside an IPv6 one (`::ffff:10.0.0.1`) counts as itself.
    const range = ipaddr.process(name).range();
    return range === 'unicast' ? 'public' : range === 'loopback' ? 'loopback' : 'private';
  }
  if (name === 'localhost') return 'loopback';
  return LOCAL_NAMES.test(name) || !name.includes('.') ? 'private' : 'public';
}

/** Whether the gateway itself runs on this machine, as in the local stack. */
export function isLocalGateway({ BASE_URL }: { BASE_URL: string }): boolean {
  const url = new URL(BASE_URL);
  return url.protocol === 'http:' && destinationOf(url) === 'loopback';
}
