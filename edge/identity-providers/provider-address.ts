import { destinationOf, isLocalGateway } from '../destination.ts';
import type { Settings } from '../settings.ts';

/**
 * What is wrong with an address of a provider, which a tenant has chosen and the gateway calls; null if
 * nothing is.
 */
export function providerAddressProblem(address: string, settings: Pick<Settings, 'BASE_URL'>): string | null {
  if (!URL.canParse(address)) return 'is not a URL';
  const url = new URL(address);
  if (url.username || url.password || url.hash) return 'must have no user or fragment';
  const destination = destinationOf(url);
  if (isLocalGateway(settings) && destination === 'loopback' && /^https?:$/.test(url.protocol)) return null;
  if (url.protocol !== 'https:') return 'must be https';
  return destination === 'public' ? null : 'must not be on a private network';
}
