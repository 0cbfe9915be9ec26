import ipaddr from 'ipaddr.js';

export type CidrReading = { ok: true; cidr: string } | { ok: false; message: string };

/**
 * Cloudflare's shared address for requests from other Workers. It identifies no client, so no rule is made
 * for it.
 */
export const CLOUDFLARE_WORKERS_ADDRESS = '2a06:98c0:3600::103';

/**
 * Parses an address or network into the canonical form of the rule files.
 * A bare address becomes /32 or /128; IPv4-mapped IPv6 becomes IPv4; host bits are rejected.
 */
export function readCidr(text: string): CidrReading {
  const [address, prefix, ...rest] = text.split('/');
  if (address === undefined || rest.length > 0 || !isPlainAddress(address)) {
    return { ok: false, message: 'not an IPv4 or IPv6 address or network' };
  }
  const parsed = ipaddr.parse(address);
  const width = parsed.kind() === 'ipv4' ? 32 : 128;
  if (prefix !== undefined && !/^(0|[1-9]\d{0,2})$/.test(prefix)) {
    return { ok: false, message: 'the prefix length is not a number' };
  }
  const length = prefix === undefined ? width : Number(prefix);
  if (length > width) return { ok: false, message: `the prefix length is over ${width}` };
  if (parsed.kind() === 'ipv6' && (parsed as ipaddr.IPv6).isIPv4MappedAddress()) {
    if (length < 96) return { ok: false, message: 'an IPv4-mapped network needs a prefix of 96 or longer' };
    return networkOf((parsed as ipaddr.IPv6).toIPv4Address(), length - 96);
  }
  return networkOf(parsed, length);
}

/** Whether a client address is in a network of canonical form. IPv4-mapped addresses are IPv4. */
export function isInNetwork(address: string, cidr: string): boolean {
  if (!isPlainAddress(address)) return false;
  const parsed = ipaddr.process(address);
  const [network, length] = ipaddr.parseCIDR(cidr);
  return parsed.kind() === network.kind() && parsed.match([network, length] as [ipaddr.IPv4, number]);
}

/** Rejects zone indexes, and octal, hexadecimal and short IPv4 forms, which parsers interpret differently. */
export function isPlainAddress(address: string): boolean {
  return (
    ipaddr.IPv4.isValidFourPartDecimal(address) || (ipaddr.IPv6.isValid(address) && !address.includes('%'))
  );
}

function networkOf(address: ipaddr.IPv4 | ipaddr.IPv6, length: number): CidrReading {
  const network =
    address.kind() === 'ipv4'
      ? ipaddr.IPv4.networkAddressFromCIDR(`${address}/${length}`)
      : ipaddr.IPv6.networkAddressFromCIDR(`${address}/${length}`);
  const cidr = `${network}/${length}`;
  return network.toString() === address.toString()
    ? { ok: true, cidr }
    : { ok: false, message: `has host bits set; the network is ${cidr}` };
}

/** From where an address can be reached. `private`: every range that is not assigned to public hosts. */
export type AddressReach = 'public' | 'loopback' | 'private';

/** @param address IPv4 or IPv6 */
export function reachOf(address: string): AddressReach {
  const parsed = ipaddr.process(address);
  const range = (embeddedIpv4(parsed) ?? parsed).range();
  return range === 'unicast' ? 'public' : range === 'loopback' ? 'loopback' : 'private';
}

/** Addresses that are only valid as themselves: `::` and `::1`. */
const FIRST_EMBEDDED = 2;
const GROUPS_OF_IPV4 = 2;

/**
 * The IPv4 address in `::/96` (RFC 4291 section 2.5.5.1), which a network may still translate; null for any
 * other. `ipaddr.process` has unwrapped the mapped ones (`::ffff:10.0.0.1`) already.
 */
function embeddedIpv4(address: ipaddr.IPv4 | ipaddr.IPv6): ipaddr.IPv4 | null {
  if (!('parts' in address)) return null;
  const { parts } = address;
  const isCompatible = parts.slice(0, -GROUPS_OF_IPV4).every((part) => part === 0);
  const bytes = address.toByteArray().slice(-2 * GROUPS_OF_IPV4);
  const isItself = bytes.slice(0, -1).every((byte) => byte === 0) && Number(bytes.at(-1)) < FIRST_EMBEDDED;
  return isCompatible && !isItself ? new ipaddr.IPv4(bytes) : null;
}
