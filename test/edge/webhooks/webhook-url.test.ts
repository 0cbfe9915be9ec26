import { describe, expect, test } from 'vitest';
import { refusalOfUrl } from '../../../edge/webhooks/delivery.ts';

const PRIVATE = [
  'https://127.0.0.1/',
  'https://127.1/',
  'https://2130706433/',
  'https://0x7f.0.0.1/',
  'https://10.1.2.3/',
  'https://172.16.0.1/',
  'https://192.168.1.1:8443/hook',
  'https://169.254.169.254/latest/meta-data/',
  'https://100.64.0.1/',
  'https://0.0.0.0/',
  'https://255.255.255.255/',
  'https://224.0.0.1/',
  'https://[::1]/',
  'https://[::]/',
  'https://[::ffff:10.0.0.1]/',
  'https://[::10.0.0.1]/',
  'https://[::a9fe:a9fe]/',
  'https://[::127.0.0.1]/',
  'https://[::2]/',
  'https://[fd00::1]/',
  'https://[fe80::1]/',
  'https://[64:ff9b::a00:1]/',
  'https://localhost/',
  'https://LOCALHOST./',
  'https://localhost../',
  'https://vault.internal../',
  'https://ci.example.com../',
  'https://ci..example.com/',
  'https://db.localhost/',
  'https://printer.local/',
  'https://vault.internal/',
  'https://nas.home.arpa/',
  'https://gateway/',
];

const PUBLIC = { local: false, ports: [443] };
const LOCAL = { local: true, ports: [443] };

describe('a public gateway', () => {
  test.each([
    'https://ci.example.com/hook?a=b',
    'https://ci.example.com./hook',
    'https://ci.example.com:443/',
    'https://203.0.112.1/',
    'https://[2606:4700::1]/',
    'https://[::203.0.112.1]/',
  ])('accepts %s', (url) => {
    expect(refusalOfUrl(url, PUBLIC)).toBeNull();
  });

  test.each(['https://ci.example.com:80/', 'https://[2606:4700::1]:8443/', 'https://203.0.112.1:22/'])(
    'refuses the port of %s, unless the operator allows it',
    (url) => {
      const ports = [443, Number(new URL(url).port)];
      expect(refusalOfUrl(url, PUBLIC)).toBe('The URL must use port 443.');
      expect(refusalOfUrl(url, { local: false, ports })).toBeNull();
      expect(refusalOfUrl('https://ci.example.com:6432/', { local: false, ports })).toBe(
        `The URL must use port 443 or ${ports[1]}.`,
      );
    },
  );

  test.each(PRIVATE)('refuses %s', (url) => {
    expect(refusalOfUrl(url, PUBLIC)).toBe('The URL must not be a local or private address.');
  });

  test.each([
    ['http://ci.example.com/', 'The URL must be https.'],
    ['http://127.0.0.1/', 'The URL must be https.'],
    ['ftp://ci.example.com/', 'The URL must be https.'],
    ['https://ada@ci.example.com/', 'The URL must not contain a user name or password.'],
    ['https://:secret@ci.example.com/', 'The URL must not contain a user name or password.'],
    ['ci.example.com', 'Invalid URL.'],
    ['', 'Invalid URL.'],
    [`https://ci.example.com/${'a'.repeat(2048)}`, 'Invalid URL.'],
  ])('refuses %s: %s', (url, message) => {
    expect(refusalOfUrl(url, PUBLIC)).toBe(message);
  });
});

describe('the local stack', () => {
  test.each(['http://127.0.0.1:8080/', 'http://localhost:1/', 'https://[::1]/'])('accepts %s too', (url) => {
    expect(refusalOfUrl(url, LOCAL)).toBeNull();
  });

  test.each(['https://10.1.2.3/', 'http://10.1.2.3/', 'http://ci.example.com/', 'https://db.localhost/'])(
    'refuses %s',
    (url) => {
      expect(refusalOfUrl(url, LOCAL)).not.toBeNull();
    },
  );
});
