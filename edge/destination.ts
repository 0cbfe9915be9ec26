import ipaddr from 'ipaddr.js';
import { type AddressReach, reachOf } from '../shared/cidr.ts';

/** Names that only a local network resolves (RFC 6761, 6762, 8375, and endings in common use). */
const LOCAL_NAMES = /(?:^|\.)(?:localhost|local|internal|intranet|lan|home|corp|private|home\.arpa)$/;

/**
 * Where a URL leads that a tenant has chosen and the gateway calls: a private address would let the tenant
 * reach what only the gateway can reach. A public name that resolves to a private address is not recognised
 * here; the runtime's network refuses that (`docs/events.md`).
 */
export function destinationOf({ hostname }: URL): AddressReach {
  // `URL` has normalized other spellings: `0x7f.1` is `127.0.0.1` there, and an IPv6 address has brackets.
  const name = hostname.replace(/^\[|\]$/g, '').replace(/\.$/, '');
  if (ipaddr.isValid(name)) return reachOf(name);
  if (name === 'localhost') return 'loopback';
  // A resolver may read a name with an empty label (`localhost..`) as the name without it.
  const isLocal = LOCAL_NAMES.test(name) || name.split('.').includes('') || !name.includes('.');
  return isLocal ? 'private' : 'public';
}

/**
 * What is wrong with the network of an address that a tenant has chosen; null if nothing is.
 * @param isLocal loopback addresses are allowed too, also over plain HTTP
 */
export function networkProblem(url: URL, isLocal: boolean): string | null {
  const destination = destinationOf(url);
  if (isLocal && destination === 'loopback' && /^https?:$/.test(url.protocol)) return null;
  if (url.protocol !== 'https:') return 'must be https';
  return destination === 'public' ? null : 'must not be on a private network';
}

/** Whether the gateway itself runs on this machine, as in the local stack. */
export function isLocalGateway({ BASE_URL }: { BASE_URL: string }): boolean {
  const url = new URL(BASE_URL);
  return url.protocol === 'http:' && destinationOf(url) === 'loopback';
}
