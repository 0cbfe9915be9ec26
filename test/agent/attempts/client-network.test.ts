import { expect, test } from 'vitest';
import { clientNetwork } from '../../../agent/attempts/attempt-windows.ts';

test.each([
  ['192.0.2.7', '192.0.2.7/32'],
  ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
  ['2001:db8::7', '2001:db8::/64'],
  // All of IPv4 would be one /64 otherwise.
  ['::ffff:192.0.2.7', '192.0.2.7/32'],
  ['fe80::1:2%eth0', 'fe80::/64'],
  // PostgreSQL logs a name with log_hostname = on.
  ['client.example.com', null],
  ['192.0.2', null],
])('attempts from %s count for %s', (address, network) => {
  expect(clientNetwork(address)).toBe(network);
});
