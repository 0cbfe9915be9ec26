import fc from 'fast-check';

const seldom = <T>(arbitrary: fc.Arbitrary<T>) => ({ weight: 1, arbitrary });
const often = <T>(arbitrary: fc.Arbitrary<T>) => ({ weight: 4, arbitrary });

/** Fragments of every language into which a client's text could be inserted. */
const FRAGMENTS = [
  '',
  ' ',
  // SQL
  `'; drop database postgres; --`,
  `"; drop schema public cascade; --`,
  `' or '1'='1`,
  `public"."author`,
  `$$; select pg_sleep(10); $$`,
  `\\'; copy author to program 'id'; --`,
  '%_%',
  'pg_catalog',
  // rule files of the two ports
  'all all 0.0.0.0/0 trust',
  `x"\nhost all all 0.0.0.0/0 trust #`,
  '@/etc/passwd',
  '0.0.0.0/0 trust\nlocal all all trust',
  '+u_owner',
  '127.0.0.1/32#',
  '::ffff:0:0/96',
  '010.0.0.1',
  // ini of the pooler
  '* = host=203.0.113.1',
  '[pgbouncer]\nauth_type = any',
  '%include /etc/passwd',
  ';',
  // shell, HTML, templates, formats
  '$(id)',
  '`id`',
  '| cat /etc/passwd',
  '<script>alert(1)</script>',
  '{{7*7}}',
  '%s%n%x',
  // paths
  '.',
  '..',
  '../../../../etc/passwd',
  '/etc/passwd',
  'main/../main',
  'lookup',
  // JavaScript's own names
  '__proto__',
  'constructor',
  'toString',
  'hasOwnProperty',
  'null',
  'undefined',
  '[object Object]',
  // texts that resemble numbers
  'NaN',
  'Infinity',
  '-0',
  '1e308',
  '0x10',
  '1_000',
  '٣',
  '99999999999999999999999999',
  '-1',
  '0.5',
  // characters that parsers handle badly
  '\0',
  'a\0b',
  '\r\nX-Injected: 1',
  '\u2028',
  '\ufeff',
  '\u202egnp',
  '\ud800',
  'İı',
  'ﬀ',
  '\u{1f468}\u200d\u{1f469}\u200d\u{1f467}',
] as const;

/** Well-formed cursors with timestamps and ids that no record has. */
const cursors = fc
  .tuple(fc.oneof(fc.maxSafeInteger(), fc.double(), fc.string()), fc.oneof(fc.uuid(), fc.string()))
  .map((parts) => Buffer.from(JSON.stringify(parts)).toString('base64'));

/** Text as an attacker would send it. */
export const hostileText: fc.Arbitrary<string> = fc.oneof(
  often(fc.constantFrom(...FRAGMENTS)),
  often(fc.string({ unit: 'binary' })),
  seldom(fc.string({ unit: 'grapheme', minLength: 40 })),
  seldom(fc.uuid().map((id) => `{${id.toUpperCase()}}`)),
  seldom(fc.uuid().map((id) => `${id}\n`)),
  seldom(cursors),
  seldom(fc.constantFrom('a', 'ü', '"', '\\', '\0').map((unit) => unit.repeat(3000))),
);

/** Any JSON value. */
const hostileValue: fc.Arbitrary<unknown> = fc.oneof(
  often(hostileText),
  seldom(fc.constantFrom(0, -0, -1, 0.1, 2 ** 31, 2 ** 53, 1e21, 1e308, -1e308, 5e-324)),
  seldom(fc.constantFrom(null, true, false)),
  seldom(fc.array(hostileText, { maxLength: 60 })),
  seldom(fc.dictionary(hostileText, hostileText, { maxKeys: 4 })),
  seldom(fc.jsonValue({ maxDepth: 4 })),
);

/** Unexpected fields of an object. */
const hostileField: fc.Arbitrary<readonly [string, unknown]> = fc.tuple(
  fc.oneof(
    fc.constantFrom('__proto__', 'constructor', 'prototype', 'id', 'tenant_id', 'status', 'role', 'limit'),
    hostileText,
  ),
  hostileValue,
);

const bytesOf = (text: string) => Buffer.from(text, 'utf8').toString('latin1');
const nested = (open: string, close: string, depth: number) => open.repeat(depth) + close.repeat(depth);

/** Unusual and invalid JSON bodies. Each character is a byte. */
const RAW_BODIES = [
  '',
  ' ',
  '{',
  '}',
  '{}{}',
  '{}',
  '[]',
  'null',
  '""',
  '0',
  '-',
  '1e999',
  '{"name":1e999}',
  '{"a":1,}',
  "{'name':'x'}",
  'name=x&branch_name=y',
  '{"name":"one","name":"two"}',
  '{"branch_name":"one","branch_name":"main"}',
  '{"__proto__":{"name":"x"}}',
  '{"name":"\\u0000"}',
  '{"name":"\\ud800"}',
  '{"name":"\\udc00\\ud800","branch_name":"\\ud800"}',
  '{"name":"\0"}',
  '\xef\xbb\xbf{"name":"after a byte order mark"}',
  '\xff\xfe{\0}\0',
  '{"name":"\xff"}',
  '{"name":"\xc0\xaf"}',
  '{"name":"\xed\xa0\x80"}',
  '\x1f\x8b\x08\0',
  nested('[', ']', 20_000),
  nested('{"a":', '}', 5000),
  `{"primary_key":"id","id":${nested('[', ']', 3000)}}`,
  `{"name":"${'x'.repeat(900_000)}"}`,
  `{"name":"${'x'.repeat(1_100_000)}"}`,
];

const cutOff = fc.tuple(fc.jsonValue(), fc.double({ min: 0, max: 1, noNaN: true })).map(([value, part]) => {
  const text = JSON.stringify(value);
  return bytesOf(text.slice(0, Math.floor(text.length * part)));
});

export const rawBody: fc.Arbitrary<string> = fc.oneof(
  often(fc.constantFrom(...RAW_BODIES)),
  seldom(cutOff),
  seldom(hostileValue.map((value) => bytesOf(JSON.stringify(value)))),
  seldom(fc.string({ unit: 'binary-ascii' })),
);

/** The value as JSON. Each character is a byte. */
export const jsonOf = (value: unknown) => bytesOf(JSON.stringify(value));

/** A valid object with one error. */
export const spoiled = (values: fc.Arbitrary<Record<string, unknown>>): fc.Arbitrary<unknown> =>
  fc.tuple(values, hostileField, fc.nat(), fc.nat(3)).map(([value, [name, hostile], position, way]) => {
    const fields = Object.entries(value);
    const at = fields.length > 0 ? position % fields.length : 0;
    const ways = [
      () => [...fields, [name, hostile]],
      () => fields.toSpliced(at, 1),
      // Invalid values are tried more often than invalid names.
      () => fields.map(([field, valid], n) => [field, n === at ? hostile : valid]),
      () => fields.map(([field, valid], n) => [field, n === at ? hostile : valid]),
    ];
    return Object.fromEntries((ways[way] ?? ways[0])?.() ?? []);
  });
