import { createHash } from 'node:crypto';
import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { expect, test } from 'vitest';
import { exampleOf } from '../../../edge/documentation/example.ts';
import type { Document } from '../../../edge/documentation/openapi.ts';
import { documentationPage } from '../../../edge/documentation/page.ts';

const HOSTILE = `</style><script>alert(1)</script><img src=x onerror="alert(2)">'"`;
const ref = (name: string) => ({ $ref: `#/components/schemas/${name}` });

const DOCUMENT: Document = {
  openapi: '3.1.0',
  info: { title: 'Trees', version: '7', description: 'First paragraph.\n\nSecond with `code`.' },
  security: [{ bearer: [] }],
  tags: [{ name: 'Leaves', description: 'Green ones.' }],
  paths: {
    '/trees/{tree_id}/leaves': {
      parameters: [
        { name: 'tree_id', in: 'path', required: true, schema: { type: 'string', format: 'uuid' } },
      ],
      post: {
        operationId: 'addLeaf',
        tags: ['Leaves'],
        summary: 'Add a leaf',
        description: HOSTILE,
        'x-roles': { owner: 'all', operator: 'own' },
        'x-scope': 'write',
        parameters: [
          {
            name: 'colour',
            in: 'query',
            required: true,
            schema: { type: 'string', enum: ["gr'een", 'red'] },
          },
        ],
        requestBody: {
          required: true,
          content: { 'application/json': { schema: ref('Leaf'), example: { name: "l'eaf $(x)" } } },
        },
        responses: {
          201: {
            description: 'The leaf.',
            headers: { 'X-Left': { $ref: '#/components/headers/X-Left' } },
            content: { 'application/json': { schema: ref('Leaf') } },
          },
          204: { description: 'Nothing to add.' },
          404: {
            description: '`NO_TREE`: no tree.',
            content: { 'application/json': { schema: { anyOf: [ref('NO_TREE'), ref('NO_LEAF')] } } },
          },
          409: {
            description: 'Conflict.',
            content: {
              'application/json': {
                schema: {
                  type: 'object',
                  properties: {
                    error: { type: 'string', enum: ['WINTER', 'AUTUMN'] },
                    until: { type: 'integer' },
                  },
                },
              },
            },
          },
        },
      },
    },
    '/seeds': { get: { security: [{ shade: [] }], responses: { 200: { description: '' } } } },
    '/health': { get: { security: [], responses: { 200: { description: HOSTILE } } } },
  },
  components: {
    headers: { 'X-Left': { description: 'How many are left.', schema: { type: 'integer' } } },
    schemas: {
      Leaf: {
        type: 'object',
        required: ['name', 'parent', 'veins'],
        properties: {
          name: { type: 'string', minLength: 3, maxLength: 48, pattern: '^[a-z]+$', description: HOSTILE },
          fallen_at: { type: ['string', 'null'], format: 'date-time' },
          tree: { allOf: [ref('Tree'), { description: 'Where it hangs.' }] },
          parent: { anyOf: [ref('Leaf'), { type: 'null' }] },
          veins: {
            type: 'array',
            items: {
              type: 'object',
              required: ['width'],
              properties: { width: { type: 'number', minimum: 2 } },
            },
          },
          marks: { type: 'object', additionalProperties: { type: 'boolean' } },
        },
        additionalProperties: false,
      },
      Tree: {
        type: 'object',
        required: ['leaves'],
        properties: { kind: { const: 'oak' }, leaves: { type: 'array', items: ref('Leaf') } },
      },
      Alias: ref('Alias'),
      Ring: { allOf: [ref('Ring'), { type: 'object', properties: { stone: { type: 'string' } } }] },
      NO_TREE: { type: 'object', properties: { error: { const: 'NO_TREE' } } },
      NO_LEAF: { type: 'object', properties: { error: { const: 'NO_LEAF' } } },
    },
  },
};

const { html, contentSecurityPolicy } = await documentationPage(DOCUMENT);

/** The visible text of the section with this id. */
function textOf(id: string): string {
  const [, section = ''] = new RegExp(`<section [^>]*id="${id}">(.*?)</section>`, 's').exec(html) ?? [];
  return section.replaceAll(/<[^>]+>/g, ' ').replaceAll(/\s+/g, ' ');
}

test('the policy allows the style of the page and nothing else', () => {
  const [, style = ''] = /<style>(.*?)<\/style>/s.exec(html) ?? [];
  const hash = createHash('sha256').update(style).digest('base64');
  expect(contentSecurityPolicy).toBe(
    `default-src 'none'; style-src 'sha256-${hash}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`,
  );
  expect(html).not.toMatch(/ style=/);
});

test('the page loads and runs nothing, even for a hostile document', () => {
  expect(html).not.toMatch(/<(script|link|img|iframe|object|base|form|meta http)/i);
  expect(html).not.toMatch(/<[^>]*\s(src|srcset|on\w+)=/i);
  expect(html).not.toMatch(/@import|url\(/);
  expect([...html.matchAll(/href="([^"]*)"/g)].every(([, href]) => href?.startsWith('#'))).toBe(true);
  expect(html).toContain('&lt;/style&gt;&lt;script&gt;alert(1)&lt;/script&gt;');
  expect(html.match(/<\/style>/g)).toHaveLength(1);
});

test('every link has exactly one target in the page', () => {
  const ids = [...html.matchAll(/ id="([^"]*)"/g)].map(([, id]) => id);
  expect(new Set(ids).size).toBe(ids.length);
  for (const [, target] of html.matchAll(/href="#([^"]*)"/g)) expect(ids).toContain(target);
});

test('headings skip no level', () => {
  const levels = [...html.matchAll(/<h([1-6])[ >]/g)].map(([, level]) => Number(level));
  expect(levels[0]).toBe(1);
  levels.forEach((level, n) => {
    expect(level - (levels[n - 1] ?? 0)).toBeLessThanOrEqual(1);
  });
});

test('the introduction has paragraphs, and each tag has a chapter, as do untagged operations', () => {
  expect(html).toContain('<p>First paragraph.</p><p>Second with <code>code</code>.</p>');
  expect(html).toMatch(/<h2 [^>]*>Leaves<\/h2>\s*<p>Green ones.<\/p>/);
  expect(html).toMatch(/<h2 [^>]*>Other<\/h2>/);
});

test('an operation shows its access and its parameters', () => {
  const text = textOf('addLeaf');
  expect(text).toContain('POST /trees/{tree_id}/leaves');
  expect(text).toContain('Roles: owner (all), operator (own). Scope: write .');
  expect(text).toContain('tree_id string (uuid) path, required');
  expect(text).toContain('colour string query, required, one of &quot;gr&#39;een&quot;, &quot;red&quot;');
  expect(textOf('get-seeds')).toContain('Requires a token: shade .');
  expect(textOf('get-health')).toContain('Public: no token required.');
});

test('types, constraints, nested fields and links are shown', () => {
  const text = textOf('schema-Leaf');
  expect(text).toContain(
    'name string required, at least 3 characters, at most 48 characters, matches ^[a-z]+$',
  );
  expect(text).toContain('fallen_at string (date-time) or null optional');
  expect(text).toContain('tree Tree optional Where it hangs.');
  expect(text).not.toContain('tree.leaves');
  expect(text).toContain('parent Leaf or null required');
  expect(text).toContain('veins array of object required veins[].width number required, at least 2');
  expect(text).toContain('marks map of boolean optional');
  expect(textOf('schema-Tree')).toContain('kind value optional, always &quot;oak&quot;');
  expect(html).toContain('<a href="#schema-Leaf">Leaf</a> or null');
});

test('the fields of a named schema are shown once, in its own section', () => {
  expect(html).toContain('<a href="#schema-Leaf">Leaf</a></span></p>');
  expect(textOf('addLeaf')).not.toContain('fallen_at string');
});

test('an unnamed response schema shows its fields, and failures show their codes, with links to their schemas', () => {
  const text = textOf('addLeaf');
  expect(text).toContain('201 The leaf. Headers: X-Left');
  expect(text).toContain('204 Nothing to add.');
  expect(text).toContain('404 NO_TREE : no tree. NO_LEAF');
  expect(text).toContain('409 Conflict. WINTER , AUTUMN');
  expect(text).toContain('until integer optional');
  expect(html).toContain('<a href="#schema-NO_LEAF">NO_LEAF</a>');
  expect(html.indexOf('>Errors</h2>')).toBeLessThan(html.indexOf('id="schema-NO_TREE"'));
});

test('recursive schemas terminate', () => {
  expect(textOf('schema-Ring')).toContain('stone string');
  expect(textOf('schema-Alias')).toContain('Alias');
});

test('the command is safe to paste, because quotes in values are escaped', () => {
  const command = textOf('addLeaf').replaceAll('&#39;', "'").replaceAll('&quot;', '"');
  expect(command).toMatch(/curl -X POST "\$BASE_URL\/trees\/[0-9a-f-]{36}\/leaves\?colour=gr%27een" \\/);
  expect(command).toContain('-H "Authorization: Bearer $TOKEN" \\');
  expect(command).toContain(String.raw`-d '{"name":"l'\''eaf $(x)"}'`);
  expect(textOf('get-seeds')).toContain('Requires a token: shade .');
  expect(textOf('get-health')).not.toContain('Authorization');
});

test.each(['Leaf', 'Tree', 'NO_TREE'])('the generated example of %s is valid', (name) => {
  const ajv = new Ajv2020({ strict: false });
  addFormats.default(ajv);
  ajv.addSchema(DOCUMENT, 'document');
  const example = exampleOf(DOCUMENT, ref(name));
  ajv.validate(`document#/components/schemas/${name}`, example);
  expect(ajv.errors).toBeNull();
});
