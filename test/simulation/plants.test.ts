import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { bundleAgent } from '../../dev/build/agent.ts';
import { PLANT_NAMES, plant } from './plants.ts';

const folder = mkdtempSync(join(tmpdir(), 'branchgate-plants-'));
let bundle = '';
beforeAll(async () => {
  const file = join(folder, 'agent.mjs');
  await bundleAgent(file);
  bundle = readFileSync(file, 'utf8');
});
afterAll(() => rmSync(folder, { recursive: true }));

test.each(PLANT_NAMES)('%s is found in the agent', (name) => {
  expect(plant(name, bundle)).not.toBe(bundle);
});

test('a fault that the agent does not contain is reported', () => {
  expect(() => plant('clone-again', 'another program')).toThrow('0 occurrences of clone-again');
});
