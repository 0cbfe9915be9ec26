import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { createClient } from '../../client/client.ts';
import { tolerant } from '../../mcp/input.ts';
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

const FIELDS = ALL.flatMap((tool) =>
  Object.entries(tool.input.shape).map(([name, schema]) => ({
    tool: tool.name,
    name,
    example: (z.globalRegistry.get(schema)?.examples as unknown[] | undefined)?.[0],
    takes: (value: unknown) => schema.safeParse(value).success,
    /** The field as the tool gets it, or its issues, with every other field right. */
    read: (value: unknown) => {
      const result = tolerant(tool.input)['~standard'].validate({ ...examplesOf(tool.name), [name]: value });
      return 'issues' in result ? result.issues : result.value[name];
    },
  })),
);

function examplesOf(name: string): Record<string, unknown> {
  return Object.fromEntries(
    FIELDS.filter(({ tool }) => tool === name).map(({ name, example }) => [name, example]),
  );
}

test.each(FIELDS)('$tool takes $name in every form that can mean nothing else', (field) => {
  const { name, example, takes, read } = field;
  expect(takes(example)).toBe(true);
  expect(read(example)).toEqual(example);
  if (typeof example !== 'string') expect(read(JSON.stringify(example))).toEqual(example);
  expect(read(null)).toEqual(
    takes(undefined) ? read(undefined) : [expect.objectContaining({ path: [name] })],
  );
  expect(read({ no: { such: 'value' } })).toContainEqual({
    path: expect.arrayContaining([name]),
    message: expect.stringMatching(/\. For instance: .+\.$/),
  });
});

test.each(ALL)('$name takes no input for an empty one, and names its fields', ({ input }) => {
  const { validate } = tolerant(input)['~standard'];
  expect(validate(undefined)).toEqual(validate({}));
  expect(validate(null)).toEqual(validate({}));
  expect(validate('{}')).toHaveProperty('issues');
  expect(validate([])).toHaveProperty('issues');
  expect(validate({ no_such: 1 })).toMatchObject({
    issues: expect.arrayContaining([
      { path: [], message: expect.stringContaining(Object.keys(input.shape).join(', ')) },
    ]),
  });
});

/** Whether a request of the API changes nothing, destroys something or only adds to it. */
function effectOf(method: string, path: string, body: string): 'reads' | 'adds' | 'destroys' {
  if (method === 'GET') return 'reads';
  if (path.endsWith('/query')) return JSON.parse(body).role === 'read_only' ? 'reads' : 'destroys';
  // On a copy that is gone with the response.
  if (path.endsWith('/try')) return 'reads';
  if (method === 'DELETE') return /\/rehearse-\w+$/.test(path) ? 'adds' : 'destroys';
  return /\/(reset|undo)$/.test(path) ? 'destroys' : 'adds';
}

test.each(ALL)('the annotations of $name are those of its requests', async (tool) => {
  const effects: string[] = [];
  const client = createClient({
    url: 'https://gateway.example',
    token: 'token',
    async fetch(request) {
      const { pathname } = new URL(request.url);
      effects.push(effectOf(request.method, pathname, await request.text()));
      const own = { id: 'own', branch_name: 'agent-checkout', labels: { agent: 'me' }, lease_seconds: 60 };
      const lists = { projects: [], branches: [own, { ...own, branch_name: 'main' }], rows: [] };
      // The job of a change is over.
      const one = { actor_id: 'me', report: null, results: [], job_id: null, credentials: {} };
      return Response.json({ ...one, ...own, ...lists });
    },
  });
  const context = { client, project: 'shop', signal: AbortSignal.timeout(20_000) };
  const { value } = tolerant(tool.input)['~standard'].validate(examplesOf(tool.name)) as { value: unknown };
  await tool.run(context, value);
  expect(effects).not.toEqual([]);
  expect(tool.effect).toEqual({
    readOnlyHint: effects.every((effect) => effect === 'reads'),
    destructiveHint: effects.includes('destroys'),
    openWorldHint: false,
  });
});
