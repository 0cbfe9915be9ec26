import { destinationOf } from '../destination.ts';

/**
 * What is wrong with the address of an issuer or of its keys; null if nothing is.
 * @param isLocal loopback addresses are allowed too, also over plain HTTP
 */
export function issuerAddressProblem(address: string, isLocal: boolean): string | null {
  if (!URL.canParse(address)) return 'not a URL';
  const url = new URL(address);
  const { protocol, username, password, search, hash } = url;
  if (username || password || search || hash) return 'must have no user, query or fragment';
  const destination = destinationOf(url);
  if (isLocal && destination === 'loopback' && ['http:', 'https:'].includes(protocol)) return null;
  if (protocol !== 'https:') return 'must be https';
  return destination === 'public' ? null : 'must not be on a private network';
}
