import { expect, test } from 'vitest';
import { gatewayAddress } from '../../../agent/link/gateway-address.ts';

test.each([
  ['https://gateway.example.com', 'wss://gateway.example.com/agent/v1/link?host_id=h', 'gateway.example.com'],
  [
    'https://gateway.example.com:8443/',
    'wss://gateway.example.com:8443/agent/v1/link?host_id=h',
    'gateway.example.com:8443',
  ],
  ['http://127.0.0.1:8787', 'ws://127.0.0.1:8787/agent/v1/link?host_id=h', '127.0.0.1:8787'],
  ['http://[::1]:8787', 'ws://[::1]:8787/agent/v1/link?host_id=h', '[::1]:8787'],
  ['http://localhost:8787', 'ws://localhost:8787/agent/v1/link?host_id=h', 'localhost:8787'],
])('%s', (url, link, audience) => {
  const address = gatewayAddress(url);
  expect(address.link('h').href).toBe(link);
  expect(address.audience).toBe(audience);
});

test.each([
  'http://gateway.example.com',
  'http://127.0.0.1.example.com',
  'ftp://127.0.0.1',
  'gateway.example.com',
  '',
])('%s is rejected', (url) => {
  expect(() => gatewayAddress(url)).toThrow('https:');
});
