import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { AGENT_SETTINGS } from '../../agent/process/settings.ts';
import { ROOT } from '../../dev/build/repository.ts';
import { SETTINGS } from '../../edge/settings.ts';
import { rangeOf } from '../../shared/setting-range.ts';

const PAGE = readFileSync(join(ROOT, 'docs/operating.md'), 'utf8');

/** What a table of the page says that each setting accepts, by name. */
function stated(head: string): Record<string, string> {
  const [table = ''] = PAGE.slice(PAGE.indexOf(`| ${head} | default | accepts |`)).split('\n\n');
  const rows = table.split('\n').slice(2);
  return Object.fromEntries(
    rows.flatMap((row) => {
      const [, names = '', , accepts = ''] = row.split('|').map((cell) => cell.trim());
      return [...names.matchAll(/`([A-Z0-9_]+)`/g)].map(([, name = '']) => [name, accepts] as const);
    }),
  );
}

test.each([
  ['setting', SETTINGS],
  ['setting of the agent', AGENT_SETTINGS],
])('docs/operating.md states what each %s accepts', (head, settings) => {
  const accepts = stated(head);
  expect(Object.keys(accepts).toSorted()).toEqual(Object.keys(settings).toSorted());
  for (const [name, schema] of Object.entries(settings))
    expect([name, accepts[name]?.split('; ')]).toEqual([name, expect.arrayContaining([rangeOf(schema)])]);
});

test('a range is that of the schema', () => {
  for (const [name, schema] of Object.entries({ ...SETTINGS, ...AGENT_SETTINGS })) {
    const [, from, to] = /^integer from (\d+) to (\d+)$/.exec(rangeOf(schema)) ?? [];
    if (from === undefined) continue;
    expect([name, schema.safeParse(from).success, schema.safeParse(to).success]).toEqual([name, true, true]);
    expect([name, schema.safeParse(Number(to) + 1).success]).toEqual([name, false]);
  }
});
