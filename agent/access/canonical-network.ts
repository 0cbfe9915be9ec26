import { readCidr } from '../../shared/cidr.ts';

const MIXED = /^([0-9a-f:]*:)(\d+)\.(\d+)\.(\d+)\.(\d+)\//;

/**
 * The canonical form of a network of PostgreSQL, which ends some IPv6 networks as an IPv4 address: `::102:304/128` as
 * `::1.2.3.4/128`. The dots are replaced first, because parsers take that for the IPv4 address 1.2.3.4.
 */
export function canonicalNetwork(cidr: string): string {
  const group = (high = '', low = '') => (Number(high) * 256 + Number(low)).toString(16);
  const [mixed, start = '', ...bytes] = MIXED.exec(cidr) ?? [''];
  const [a, b, c, d] = bytes;
  const plain = mixed ? `${start}${group(a, b)}:${group(c, d)}/${cidr.slice(mixed.length)}` : cidr;
  const reading = readCidr(plain);
  return reading.ok ? reading.cidr : cidr;
}
