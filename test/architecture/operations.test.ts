import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { OPERATIONS } from '../../shared/protocol/operations.ts';

const FOLDER = join(import.meta.dirname, '../../agent/operations');

test('agent/operations has one file for each operation of the protocol, and their table', () => {
  const files = Object.keys(OPERATIONS).map((method) => `${method.replace('.', '-')}.ts`);
  expect(readdirSync(FOLDER).toSorted()).toEqual([...files, 'handlers.ts'].toSorted());
});
