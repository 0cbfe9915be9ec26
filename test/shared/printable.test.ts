import { expect, test } from 'vitest';
import { printable, printableJson, printableLine } from '../../shared/printable.ts';

/** Sets the title, clears the screen by a C1 control, moves to the start of the line, and reorders what follows. */
const HOSTILE = 'a\u001b]0;owned\u0007\u009b2J\r\u202eb\u0000\u007f';
const ESCAPED = 'a\\u001b]0;owned\\u0007\\u009b2J\\u000d\\u202eb\\u0000\\u007f';

test('a message has its lines and tabs, and no other control character', () => {
  expect(printable(`${HOSTILE}\n\tend`)).toBe(`${ESCAPED}\n\tend`);
  expect(printable('Größe “10” 日本 🐘')).toBe('Größe “10” 日本 🐘');
});

test('a line has none', () => {
  expect(printableLine(`${HOSTILE}\n\tend`)).toBe(`${ESCAPED.replace('\\u000d', ' ')}  end`);
});

test('JSON is the same document', () => {
  const value = { [HOSTILE]: [HOSTILE, 'line\nfeed'] };
  for (const indent of [0, 2]) {
    const text = printableJson(value, indent);
    expect(text).not.toMatch(/[^\P{Cc}\n]|\u202e/u);
    expect(JSON.parse(text)).toEqual(value);
  }
});
