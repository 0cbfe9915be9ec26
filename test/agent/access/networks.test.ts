import { expect, test } from 'vitest';
import { canonicalNetwork } from '../../../agent/access/networks.ts';

test.each([
  ['::1.2.3.4/128', '::102:304/128'],
  ['::89.192.145.208/128', '::59c0:91d0/128'],
  ['::0.0.0.2/128', '::2/128'],
  ['10.0.0.0/8', '10.0.0.0/8'],
  ['2001:db8::/32', '2001:db8::/32'],
  ['::/0', '::/0'],
])('PostgreSQL writes %s for %s', (written, canonical) => {
  expect(canonicalNetwork(written)).toBe(canonical);
});
