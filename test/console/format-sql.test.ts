import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { formatSql } from '../../console/pages/sql/format-sql.ts';
import { ROOT } from '../../dev/build/repository.ts';
import { sqlTokens } from '../../shared/sql-tokens.ts';

test.each([
  ['select 1', 'select 1'],
  [
    "select id,name from item where price>1 and name like 'a%' order by name limit 10;",
    "select id, name\nfrom item\nwhere price>1 and name like 'a%'\norder by name\nlimit 10;",
  ],
  [
    'select a.id, a.first_name, a.last_name, a.email, a.created_at, count(*) as n from account a left join "order" o on o.account_id = a.id where a.is_open and a.created_at between now() - interval \'30 days\' and now() and a.country is distinct from $1 group by 1',
    `select a.id, a.first_name, a.last_name, a.email, a.created_at, count(*) as n
from account a
left join "order" o on o.account_id = a.id
where a.is_open
  and a.created_at between now() - interval '30 days' and now()
  and a.country is distinct from $1
group by 1`,
  ],
  [
    'with recent as (select * from item where id in (select item_id from sale)) select * from recent',
    `with recent as (
  select *
  from item
  where id in (
    select item_id
    from sale
  )
)
select *
from recent`,
  ],
  [
    "insert into item (id, name) values (1, 'One') on conflict (id) do update set name = excluded.name returning *; delete from item",
    `insert into item (id, name)
values (1, 'One')
on conflict (id) do update set name = excluded.name
returning *;

delete from item`,
  ],
  // PostgreSQL joins two texts on two lines, and a comment ends with its line.
  ["select 'a'\n  'b', -- last\n  2", "select\n  'a'\n  'b',\n  -- last\n  2"],
  ['create function f() returns int\nlanguage sql as $$\n select 1 $$', undefined],
  ['select $$two\n   lines$$, left(name, 2) from item', 'select $$two\n   lines$$, left(name, 2)\nfrom item'],
])('%j', (text, formatted = text) => {
  expect(formatSql(text)).toBe(formatted);
});

/** The parts of a text that PostgreSQL reads, with the line ends that have a meaning. */
const readOf = (text: string) => {
  const read: string[] = [];
  let gap = '';
  for (const { kind, text: part } of sqlTokens(text)) {
    if (kind === 'blank') {
      gap += part;
      continue;
    }
    const isContinued = kind === 'quoted' && gap.includes('\n') && read.at(-1)?.endsWith("'");
    read.push(isContinued ? `\n${part}` : part);
    gap = '';
  }
  return read;
};

test('formatting changes blanks only, and nothing the second time', () => {
  const files = globSync(['test/**/*.sql', 'edge/database/migrations/*.sql'], {
    cwd: ROOT,
    exclude: (name) => name.includes('node_modules'),
  });
  // Statements in template strings, some of which are not whole.
  const inTests = globSync('test/{agent,end-to-end}/**/*.ts', { cwd: ROOT });
  const texts = [
    ...files.map((file) => readFileSync(join(ROOT, file), 'utf8')),
    ...inTests.flatMap((file) =>
      [
        ...readFileSync(join(ROOT, file), 'utf8').matchAll(
          /`((?:select|with|insert|update|delete|create|alter)\b[^`]*)`/gi,
        ),
      ].map(([, text = '']) => text),
    ),
  ];
  expect(texts.length).toBeGreaterThan(300);
  for (const text of texts) {
    const formatted = formatSql(text);
    expect(readOf(formatted)).toEqual(readOf(text));
    expect(formatSql(formatted)).toBe(formatted);
  }
});
