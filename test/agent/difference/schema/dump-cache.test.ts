import { expect, test } from 'vitest';
import { DumpCache } from '../../../../agent/difference/schema/dump-cache.ts';
import type { Archive } from '../../../../agent/dump/archive.ts';

const archive = (length: number): Archive => [
  {
    id: 1,
    kind: 'TABLE',
    schema: 'public',
    tag: 'book',
    definition: 'x'.repeat(length),
    drop: null,
    oid: 1,
    catalog: 1259,
    section: 'pre-data',
    dependencies: [],
    accessMethod: null,
  },
];

test('a side that did not change is not dumped again, and the dumps that were used last stay', async () => {
  const cache = new DumpCache(9_999);
  const dumped: string[] = [];
  const get = (project: string, print: string, length = 2_000) =>
    cache.get(project, print, async () => {
      dumped.push(`${project} ${print}`);
      return archive(length);
    });
  for (const print of ['a', 'b', 'c', 'a']) await get('one', print);
  expect(dumped.splice(0)).toEqual(['one a', 'one b', 'one c']);
  // Another project never gets the dump of this one.
  await get('two', 'a');
  expect(dumped.splice(0)).toEqual(['two a']);
  // `b` was used before the others.
  for (const print of ['c', 'a', 'b']) await get('one', print);
  expect(dumped.splice(0)).toEqual(['one b']);
  // One that alone is too large makes no other one go.
  for (const print of ['huge', 'huge', 'a']) await get('one', print, 20_000);
  expect(dumped).toEqual(['one huge', 'one huge']);
});
