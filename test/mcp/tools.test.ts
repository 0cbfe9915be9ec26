import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { rehearseMigration } from '../../mcp/rehearse-migration.ts';
import { TOOLS } from '../../mcp/tools.ts';

const page = readFileSync(join(import.meta.dirname, '../../docs/agents.md'), 'utf8');

const ALL = [...TOOLS, rehearseMigration(async () => null)];

test('docs/agents.md has the tools in their order', () => {
  const [, section = ''] = /^## Tools\n(.*?)^## /ms.exec(page) ?? [];
  const rows = [...section.matchAll(/^\| `(\w+)` \|/gm)].map(([, name]) => name);
  expect(rows).toEqual(ALL.map(({ name }) => name));
});

test('no tool takes fields that it does not know', () => {
  for (const { input } of ALL) {
    expect(input.safeParse({ unknown: 1 }).error?.issues).toContainEqual(
      expect.objectContaining({ code: 'unrecognized_keys' }),
    );
    expect(z.toJSONSchema(input, { io: 'input' })).toMatchObject({
      type: 'object',
      additionalProperties: false,
    });
  }
});
