import { expect, test } from 'vitest';
import { LoopbackRedirect } from '../../../edge/routes/provider-sign-in.ts';

const isAccepted = (text: string) => LoopbackRedirect.safeParse(text).success;

test.each([
  'http://localhost/auth/callback',
  'http://127.0.0.1/auth/callback',
  'http://127.0.0.1:1/auth/callback',
  'http://localhost:49152/auth/callback',
  'http://127.0.0.1:65535/auth/callback',
])('%s is accepted', (address) => expect(isAccepted(address)).toBe(true));

test.each([
  'http://localhost.evil.example/auth/callback',
  'http://127.0.0.1.evil.example/auth/callback',
  'http://127.0.0.1@evil.example/auth/callback',
  'http://user@127.0.0.1/auth/callback',
  'http://user:word@localhost:1/auth/callback',
  'https://127.0.0.1:49152/auth/callback',
  'http://LOCALHOST/auth/callback',
  'HTTP://localhost/auth/callback',
  'http://[::1]:49152/auth/callback',
  'http://127.0.0.2/auth/callback',
  'http://2130706433/auth/callback',
  'http://127.1/auth/callback',
  'http://127.0.0.1:/auth/callback',
  'http://127.0.0.1:0/auth/callback',
  'http://127.0.0.1:080/auth/callback',
  'http://127.0.0.1:65536/auth/callback',
  'http://127.0.0.1:123456/auth/callback',
  'http://127.0.0.1:49152/',
  'http://127.0.0.1:49152/auth/callback/',
  'http://127.0.0.1:49152/auth/callback/more',
  'http://127.0.0.1:49152/auth/../auth/callback',
  'http://127.0.0.1:49152/auth/%63allback',
  'http://127.0.0.1:49152/auth/callback?a=b',
  'http://127.0.0.1:49152/auth/callback?',
  'http://127.0.0.1:49152/auth/callback#a',
  'http://127.0.0.1:49152/auth/callback#',
  'http://127.0.0.1:49152/auth/callback\n',
  ' http://127.0.0.1:49152/auth/callback',
  'http:\\\\127.0.0.1\\auth\\callback',
  'http:/127.0.0.1/auth/callback',
  '//127.0.0.1/auth/callback',
])('%j is refused', (address) => expect(isAccepted(address)).toBe(false));
