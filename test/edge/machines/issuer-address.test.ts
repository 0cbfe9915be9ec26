import { expect, test } from 'vitest';
import { issuerAddressProblem } from '../../../edge/machines/trusts.ts';

const PUBLIC = [
  'https://token.actions.githubusercontent.com',
  'https://gitlab.example.com:8443/group/',
  'https://1.1.1.1',
  'https://[2606:4700::1111]/',
];
const LOOPBACK = ['http://127.0.0.1:1234', 'http://localhost:1234', 'https://[::1]:1234/x'];
/** Refused everywhere. */
const REFUSED = [
  ...[
    'http://token.actions.githubusercontent.com',
    'ftp://example.com',
    'data:text/plain,x',
    'example.com',
    '',
  ],
  ...[
    'https://10.0.0.1',
    'https://192.168.1.1',
    'https://172.16.0.1',
    'https://169.254.169.254',
    'https://0.0.0.0',
  ],
  // Other spellings of 127.0.0.1 and 10.0.0.1, which `URL` normalises.
  ...['http://10.1', 'https://0x0a000001', 'https://167772161', 'https://012.0.0.1'],
  ...['https://[fd00::1]', 'https://[fe80::1]', 'https://[::ffff:10.0.0.1]', 'https://[64:ff9b::a00:1]'],
  ...['https://100.64.0.1', 'https://224.0.0.1', 'https://192.0.2.1', 'https://255.255.255.255'],
  ...[
    'https://intranet',
    'https://db.internal',
    'https://a.local',
    'https://x.localhost',
    'https://db.internal.',
  ],
  ...['https://user@example.com', 'https://example.com?x=1', 'https://example.com/#x'],
];

test.each(PUBLIC)('%s is an issuer', (address) => {
  for (const isLocal of [true, false]) expect(issuerAddressProblem(address, isLocal)).toBeNull();
});

test.each(LOOPBACK)('%s is one in the local stack only', (address) => {
  expect(issuerAddressProblem(address, true)).toBeNull();
  expect(issuerAddressProblem(address, false)).not.toBeNull();
});

test.each(REFUSED)('%s is none', (address) => {
  for (const isLocal of [true, false]) expect(issuerAddressProblem(address, isLocal)).not.toBeNull();
});
