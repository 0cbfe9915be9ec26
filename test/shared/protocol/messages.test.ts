import { expect, test } from 'vitest';
import { z } from 'zod';
import { BOUNDS } from '../../../shared/protocol/bounds.ts';
import { fitsMessage, readMessage } from '../../../shared/protocol/messages.ts';

const Anything = z.unknown();
const nested = (depth: number) => '['.repeat(depth) + ']'.repeat(depth);

test.each([
  ['bytes', new Uint8Array([123, 125]), 'not_text'],
  ['nothing', undefined, 'not_text'],
  ['one byte over the size', `"${'x'.repeat(BOUNDS.messageBytes - 1)}"`, 'oversize'],
  ['over the size in bytes, not in characters', `"${'é'.repeat(BOUNDS.messageBytes / 2)}"`, 'oversize'],
  ['no JSON', '{"a":', 'not_json'],
  ['an empty text', '', 'not_json'],
  ['one level too deep', nested(BOUNDS.nestingDepth + 1), 'too_deep'],
  ['half a million levels', nested(BOUNDS.messageBytes / 2), 'too_deep'],
  ['objects too deep', `${'{"a":'.repeat(17)}1${'}'.repeat(17)}`, 'too_deep'],
])('%s is rejected', (_name, data, fault) => {
  expect(readMessage(Anything, data, BOUNDS)).toEqual({ ok: false, fault });
});

test('JSON that does not match the schema is malformed', () => {
  const schema = z.strictObject({ a: z.int() });
  for (const data of ['{"a":"1"}', '{"a":1,"b":2}', '{"a":1,"__proto__":{}}', '[]', 'null', '1']) {
    expect(readMessage(schema, data, BOUNDS)).toEqual({ ok: false, fault: 'malformed' });
  }
  expect(readMessage(schema, '{"a":1}', BOUNDS)).toEqual({ ok: true, message: { a: 1 } });
});

test('messages of exactly the maximum size and depth are accepted', () => {
  expect(readMessage(Anything, `"${'x'.repeat(BOUNDS.messageBytes - 2)}"`, BOUNDS).ok).toBe(true);
  expect(readMessage(Anything, nested(BOUNDS.nestingDepth), BOUNDS).ok).toBe(true);
});

test.each(['x', 'é', '€', '😀'])('the size of %s is counted in UTF-8 bytes', (character) => {
  const text = character.repeat(100);
  const bytes = Buffer.byteLength(text);
  expect(fitsMessage(text, { messageBytes: bytes })).toBe(true);
  expect(fitsMessage(text, { messageBytes: bytes - 1 })).toBe(false);
});
