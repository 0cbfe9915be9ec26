import { expect, test } from 'vitest';
import { bounded } from '../../../../agent/difference/schema/compare-schemas.ts';

const change = (n: number) => ({
  kind: 'table',
  identity: `public.t${n}${'é'.repeat(100)}`,
  change: 'added' as const,
});
const PROVEN = { schema_proven: true, unproven_reason: null };
const many = <T>(count: number, of: (n: number) => T) => Array.from({ length: count }, (_, n) => of(n));

test('a difference that fits is complete', () => {
  const difference = { changes: many(500, change), statements: ['SELECT 1'], not_modelled: ['x'], ...PROVEN };
  expect(bounded(difference)).toEqual(difference);
});

test('what does not fit into a message is counted, and half of a plan is never returned', () => {
  const difference = {
    changes: many(2_000, change),
    statements: many(300, (n) => `SELECT '${'x'.repeat(1_000)}${n}'`),
    not_modelled: many(5_000, (n) => `No statement is made for the operator public.o${n}.`),
    ...PROVEN,
  };
  const { changes, statements, not_modelled } = bounded(difference);
  expect(statements).toEqual([]);
  expect(changes.length).toBeGreaterThan(500);
  expect(not_modelled.slice(0, 2)).toEqual([
    'The statements are not listed, because they are too long together.',
    `${2_000 - changes.length} more changes are not listed.`,
  ]);
  expect(not_modelled.at(-1)).toBe(`${5_003 - not_modelled.length} more such differences are not listed.`);
  const bytes = Buffer.byteLength(JSON.stringify({ changes, statements, not_modelled }));
  expect(bytes).toBeLessThan(300_000);
});
