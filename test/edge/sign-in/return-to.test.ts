import fc from 'fast-check';
import { expect, test } from 'vitest';
import { ReturnTo } from '../../../edge/sign-in/provider-sign-in.ts';

const isAccepted = (text: string) => ReturnTo.safeParse(text).success;

test.each(['/', '/projects', '/projects/1?tab=rows&page=2#top', '/caf%C3%A9/100%25', '/a//b', '/café'])(
  '%s is accepted',
  (path) => expect(isAccepted(path)).toBe(true),
);

test.each([
  '',
  'projects',
  'https://evil.example',
  'javascript:alert(1)',
  '//evil.example',
  '///evil.example',
  '/\\evil.example',
  '\\/evil.example',
  '/%2Fevil.example',
  '/%2fevil.example',
  '/%5Cevil.example',
  '/%09/evil.example',
  '/\t/evil.example',
  '/%0d%0aSet-Cookie:%20a=b',
  '/\r\nSet-Cookie: a=b',
  '/a\u0000',
  '/a%7F',
  '/a%C2%85',
  ' /a',
  '%2Fa',
  '/100%',
  '/%E0%A4%A',
  '/%FF',
  `/${'a'.repeat(2048)}`,
])('%j is refused', (path) => expect(isAccepted(path)).toBe(false));

test('every accepted path stays on the origin, as written and decoded', () => {
  const pieces = ['/', '\\', '%2f', '%5C', '%09', '\t', '\n', '.', '@', ':', 'evil.example', '?', '#', '%'];
  const text = fc.array(fc.oneof(fc.constantFrom(...pieces), fc.string({ maxLength: 3 })), { maxLength: 8 });
  fc.assert(
    fc.property(text, (parts) => {
      const path = `/${parts.join('')}`;
      fc.pre(isAccepted(path));
      for (const spelling of [path, decodeURIComponent(path)]) {
        expect(new URL(spelling, 'https://api.example.com').origin).toBe('https://api.example.com');
      }
    }),
  );
});
