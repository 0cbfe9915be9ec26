import ipaddr from 'ipaddr.js';
import { isPlainAddress } from '../../shared/cidr.ts';

/** One client often has the whole /64 of an IPv6 address (RFC 6177), and could otherwise change its address at will. */
const PREFIXES = { ipv4: 32, ipv6: 64 };

/** The network whose attempts are counted together, in canonical form; null when `text` is no address. */
export function clientNetwork(text: string): string | null {
  // A link-local address can have a zone, such as `fe80::1%eth0`.
  const address = text.replace(/%.*$/, '');
  if (!isPlainAddress(address)) return null;
  const parsed = ipaddr.process(address);
  const prefix = PREFIXES[parsed.kind()];
  const network =
    parsed.kind() === 'ipv4'
      ? parsed
      : ipaddr.IPv6.networkAddressFromCIDR(`${parsed.toNormalizedString()}/${prefix}`);
  return `${network}/${prefix}`;
}
