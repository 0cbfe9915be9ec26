import ipaddr from 'ipaddr.js';
import { LOOPBACK } from '../authentication/fetch-keys.ts';

/** Endings of names that only a private network resolves. */
const PRIVATE_NAMES = /(?:^|\.)(?:localhost|local|internal|intranet|lan|home|corp|private|home\.arpa)$/;

/** Whether the gateway itself runs on this machine, as in the local stack. */
export function isLocalGateway({ BASE_URL }: { BASE_URL: string }): boolean {
  const { protocol, hostname } = new URL(BASE_URL);
  return protocol === 'http:' && LOOPBACK.has(hostname);
}

/**
 * What is wrong with the address of an issuer or of its keys; null if nothing is. The gateway fetches it, so an address
 * of a private network would let a tenant reach what only the gateway can reach.
 * @param isLocal loopback addresses are allowed too, also over plain HTTP
 */
export function issuerAddressProblem(address: string, isLocal: boolean): string | null {
  if (!URL.canParse(address)) return 'not a URL';
  const { protocol, hostname, username, password, search, hash } = new URL(address);
  if (username || password || search || hash) return 'must have no user, query or fragment';
  const isLoopback = LOOPBACK.has(hostname);
  if (isLocal && isLoopback && ['http:', 'https:'].includes(protocol)) return null;
  if (protocol !== 'https:') return 'must be https';
  return isPublic(hostname) ? null : 'must not be on a private network';
}

function isPublic(hostname: string): boolean {
  const name = hostname.replace(/\.$/, '');
  const address = name.replace(/^\[(.*)\]$/, '$1');
  if (ipaddr.isValid(address)) return ipaddr.process(address).range() === 'unicast';
  return name.includes('.') && !PRIVATE_NAMES.test(name);
}
