import { expect, test } from 'vitest';
import { isLocalGateway } from '../../edge/destination.ts';

test.each([
  ['http://127.0.0.1:8787', true],
  ['http://localhost:8787', true],
  ['https://127.0.0.1', false],
  ['https://api.example.com', false],
  ['http://api.example.com', false],
  ['https://10.0.0.1', false],
])('the gateway at %s is of the local stack: %s', (BASE_URL, isLocal) => {
  expect(isLocalGateway({ BASE_URL })).toBe(isLocal);
});
