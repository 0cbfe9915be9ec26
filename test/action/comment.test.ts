import { expect, onTestFinished, test, vi } from 'vitest';
import { changesText } from '../../action/changes.ts';
import { setFailed, warning } from '../../action/log.ts';
import { codeBlock } from '../../action/markdown.ts';
import { failureOf, rehearsalPart } from '../../action/rehearsal.ts';

const lines = (text: string) => text.split('\n');

test('no name leaves its block, or begins a part of the comment', () => {
  const hostile = [
    '```',
    '````sql',
    '<!-- part branch -->',
    'a\n```\n<h1>',
    '| [x](https://evil.example) @ada',
  ];
  const block = lines(codeBlock(hostile));
  expect(block[0]).toBe(' `````');
  expect(block.at(-1)).toBe(' `````');
  expect(block.slice(1, -1)).toEqual(hostile.map((line) => ` ${line.replaceAll('\n', ' ')}`));
});

test('the log of the build shows no control character of a database', () => {
  const { exitCode } = process;
  const written: unknown[] = [];
  const write = vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
    written.push(text);
    return true;
  });
  onTestFinished(() => {
    write.mockRestore();
    process.exitCode = exitCode;
  });
  setFailed('book\u001b]0;owned\u0007');
  warning('book\u009b2J');
  expect(written.join('')).toBe('::error::book\\u001b]0;owned\\u0007\n::warning::book\\u009b2J\n');
});

test('a long block is cut', () => {
  const many = Array.from({ length: 100 }, () => 'x'.repeat(1000));
  const cut = codeBlock(many);
  expect(cut.length).toBeLessThan(13_000);
  expect(cut).toMatch(/… and 40 more\.$/);
});

const against = { kind: 'branch' as const, id: '3f2b8c1e-6f0a-4c5e-9d61-0c7b3d2f4a10', name: 'main' };
const nothing = { changes: [], statements: [], not_modelled: [], schema_proven: true, unproven_reason: null };
const rows = { tables: [], has_more: false, compared: 3, not_compared: [] };

test('what has changed is listed by table and object', () => {
  const text = changesText({
    against,
    method: 'wal_summary',
    rows: {
      ...rows,
      tables: [
        { schema: 'public', name: 'book', inserted: 1, updated: 250, deleted: 0, method: 'wal_summary' },
      ],
      not_compared: [{ schema: 'public', name: 'secret', reason: 'row_security' }],
    },
    schema: {
      changes: [
        { kind: 'table', identity: 'public.author', change: 'added' },
        { kind: 'column', identity: 'public.book.title', change: 'changed', detail: 'type' },
      ],
      statements: ['create table public.author ()', 'alter table public.book alter title type text;'],
      not_modelled: ['cast (a as b)'],
      schema_proven: false,
      unproven_reason: 'not_modelled' as const,
    },
  });
  expect(lines(text)).toEqual([
    '#### Changes',
    ...['', 'Rows:', '', ' ```', ' public.book: 1 inserted, 250 updated'],
    ...[' public.secret: not compared (row_security)', ' ```', '', 'Schema:', '', ' ```diff'],
    ...[' + table public.author', ' ! column public.book.title (type)', ' # cast (a as b)', ' ```', ''],
    ...['<details><summary>Statements</summary>', '', ' ```sql', ' create table public.author ();'],
    ...[' alter table public.book alter title type text;', ' ```', '', '</details>', ''],
    'The statements were tried on a copy of the other schema without rows. What they leave different is listed.',
  ]);
});

test('nothing has changed', () => {
  expect(changesText({ against, method: 'wal_summary', rows, schema: nothing })).toBe(
    '#### Changes\n\nNo rows differ.\n\nThe schema is the same.',
  );
});

test('statements that are too long are left out', () => {
  const statements = [`select '${'x'.repeat(30_000)}'`];
  const changes = [{ kind: 'view', identity: 'public.v', change: 'added' as const }];
  const text = changesText({
    against,
    method: null,
    rows: null,
    schema: { ...nothing, changes, statements },
  });
  expect(text).toContain('too long for a comment');
  expect(text.length).toBeLessThan(1000);
});

test.each([
  ['safe', 0, null],
  ['danger', 0, 'danger'],
  ['failed', 3, 'exit code 3'],
] as const)('a rehearsal that is %s, of a migration that ends with %i', (verdict, exitCode, failure) => {
  const wal = { bytes: 0, exact: true };
  const counts = { unwatched_tables: 0, samples: 1, longest_gap_ms: 50 };
  const report = { verdict, dangers: [], tables: [], schema: nothing, wal, ...counts };
  const found = failureOf({ report, exitCode, masking: null });
  if (failure === null) expect(found).toBeNull();
  else expect(found).toContain(failure);
  expect(rehearsalPart({ report, exitCode, masking: null })).toContain(
    `#### Rehearsal\n\n \`\`\`\n Verdict: ${verdict}\n`,
  );
});
