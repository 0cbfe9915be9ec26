import { expect, test } from 'vitest';
import { MAPS, parseForeign, RefusedKey, refusedKey } from '../../shared/foreign-json.ts';

test.each([
  ['{"__proto__":1}', '__proto__'],
  ['{"constructor":1}', 'constructor'],
  ['{"a":[{"b":{"prototype":1}}]}', 'a.0.b.prototype'],
  // The same name, written with escapes.
  ['{"\\u005f_proto__":1}', '__proto__'],
  ['{"values":{"__proto__":1}}', 'values.__proto__'],
  ['{"values":{"a":{"constructor":1}}}', 'values.a.constructor'],
  // A key of a map that is called like a map is data too, but what is in it is not.
  ['{"values":{"values":{"constructor":1}}}', 'values.values.constructor'],
  ['{"values":[{"constructor":1}]}', 'values.0.constructor'],
])('%s has a refused key', (text, path) => {
  expect(refusedKey(JSON.parse(text), MAPS)).toBe(path);
  expect(() => parseForeign(text)).toThrow(RefusedKey);
});

test.each([
  '{"values":{"constructor":1,"prototype":2}}',
  '{"a":"__proto__"}',
  '["constructor"]',
  '1',
  'null',
])('%s has none', (text) => {
  expect(refusedKey(JSON.parse(text), MAPS)).toBeNull();
});

test('a key of a map is refused where no map is declared', () => {
  expect(() => parseForeign('{"values":{"constructor":1}}')).toThrow('values.constructor');
});

test('a value that is nested without a bound is read', () => {
  expect(refusedKey(nested(10_000))).toMatch(/constructor$/);
});

function nested(depth: number): object {
  let value: object = JSON.parse('{"constructor":1}');
  for (let n = 0; n < depth; n++) value = { a: value };
  return value;
}
