import { expect, test } from 'vitest';
import { readCidr } from '../../shared/cidr.ts';

test.each([
  ['203.0.113.7', '203.0.113.7/32'],
  ['203.0.113.0/24', '203.0.113.0/24'],
  ['0.0.0.0/0', '0.0.0.0/0'],
  ['::/0', '::/0'],
  ['2001:db8::1', '2001:db8::1/128'],
  ['2001:DB8:0:0::/32', '2001:db8::/32'],
  ['::ffff:203.0.113.7', '203.0.113.7/32'],
  ['::ffff:203.0.113.0/120', '203.0.113.0/24'],
])('%s becomes %s', (text, cidr) => {
  expect(readCidr(text)).toEqual({ ok: true, cidr });
});

test.each([
  ['203.0.113.7/24', /203\.0\.113\.0\/24/],
  ['2001:db8::1/64', /2001:db8::\/64/],
  ['203.0.113.7/33', /over 32/],
  ['2001:db8::/129', /over 128/],
  ['::ffff:0:0/95', /96/],
  ['203.0.113.0/', /not a number/],
  ['203.0.113.0/024', /not a number/],
  ['203.0.113.0/2 4', /not a number/],
  ['010.1.1.1', /not an IPv4/],
  ['0x7f.1', /not an IPv4/],
  ['127.1', /not an IPv4/],
  ['fe80::1%eth0', /not an IPv4/],
  ['203.0.113.0/24/24', /not an IPv4/],
  ['all', /not an IPv4/],
  ['samenet', /not an IPv4/],
  ['', /not an IPv4/],
  ['203.0.113.7\nhost all all all trust', /not an IPv4/],
])('%j is rejected', (text, message) => {
  const reading = readCidr(text);
  expect(reading.ok).toBe(false);
  expect(!reading.ok && reading.message).toMatch(message);
});
