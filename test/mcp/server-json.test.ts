import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { createProgram } from '../../cli/program.ts';

/**
 * `server.json`, with which the registry of the Model Context Protocol lists the tools. The rules are those of its schema
 * of 2025-12-11, written here again: a test reads nothing from the network, and unknown fields are a mistake.
 */

const read = (path: string) => JSON.parse(readFileSync(join(import.meta.dirname, '../..', path), 'utf8'));

const SCHEMA = 'https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json';
/** The registry refuses ranges, and `latest`. */
const Version = z
  .string()
  .min(1)
  .max(255)
  .regex(/^\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?$/);
const https = z.url({ protocol: /^https$/ });
/** In `{braces}` at the beginning, a variable. */
const UrlTemplate = z.string().regex(/^(https?:\/\/[^\s]+|\{[a-zA-Z_][a-zA-Z0-9_]*\}[^\s]*)$/);

const INPUT = {
  description: z.string().optional(),
  isRequired: z.boolean().optional(),
  isSecret: z.boolean().optional(),
  format: z.enum(['string', 'number', 'boolean', 'filepath']).optional(),
  default: z.string().optional(),
  placeholder: z.string().optional(),
  value: z.string().optional(),
  choices: z.array(z.string()).optional(),
};
const Input = z.strictObject(INPUT);
const WITH_VARIABLES = { ...INPUT, variables: z.record(z.string(), Input).optional() };
const KeyValue = z.strictObject({ ...WITH_VARIABLES, name: z.string() });
const Argument = z.union([
  z.strictObject({
    ...WITH_VARIABLES,
    type: z.literal('named'),
    name: z.string(),
    isRepeated: z.boolean().optional(),
  }),
  z
    .strictObject({
      ...WITH_VARIABLES,
      type: z.literal('positional'),
      valueHint: z.string().optional(),
      isRepeated: z.boolean().optional(),
    })
    .refine(({ value, valueHint }) => value !== undefined || valueHint !== undefined),
]);
const HTTP = {
  type: z.enum(['streamable-http', 'sse']),
  url: UrlTemplate,
  headers: z.array(KeyValue).optional(),
};
const Server = z.strictObject({
  $schema: z.literal(SCHEMA),
  name: z
    .string()
    .min(3)
    .max(200)
    .regex(/^[a-zA-Z0-9.-]+\/[a-zA-Z0-9._-]+$/),
  title: z.string().min(1).max(100).optional(),
  description: z.string().min(1).max(100),
  version: Version,
  websiteUrl: https.optional(),
  repository: z.strictObject({
    url: https,
    source: z.string(),
    id: z.string().optional(),
    subfolder: z.string().optional(),
  }),
  packages: z.array(
    z.strictObject({
      registryType: z.literal('npm'),
      registryBaseUrl: z.literal('https://registry.npmjs.org').optional(),
      identifier: z.string(),
      version: Version,
      runtimeHint: z.literal('npx').optional(),
      transport: z.union([z.strictObject({ type: z.literal('stdio') }), z.strictObject(HTTP)]),
      packageArguments: z.array(Argument).optional(),
      environmentVariables: z.array(KeyValue).optional(),
    }),
  ),
  remotes: z.array(z.strictObject({ ...HTTP, variables: z.record(z.string(), Input).optional() })),
});

const server = Server.parse(read('server.json'));
const cli = read('cli/package.json');

test('the registry finds the package, which names the server, in this version', () => {
  expect(cli.mcpName).toBe(server.name);
  const [, owner] = /github\.com\/([^/]+)\//.exec(server.repository.url) ?? [];
  expect(server.name).toBe(`io.github.${owner}/branchgate`);
  expect(server.packages).toMatchObject([{ identifier: cli.name, version: cli.version }]);
  expect([server.version, cli.repository.directory]).toEqual([cli.version, server.repository.subfolder]);
  expect(cli.repository.url).toContain(server.repository.url.replace('https://', ''));
});

test('its arguments are a command, and its variables are those that the command line reads', () => {
  const program = createProgram(cli.version);
  const [{ packageArguments = [], environmentVariables = [] } = {}] = server.packages;
  expect(packageArguments.map(({ value }) => value)).toEqual(['mcp']);
  expect(program.commands.map((command) => command.name())).toContain('mcp');
  let help = '';
  program.configureOutput({ writeOut: (text) => (help += text) }).outputHelp();
  for (const { name } of environmentVariables) expect(help).toContain(name);
  const secrets = environmentVariables.filter(({ isSecret }) => isSecret).map(({ name }) => name);
  expect(secrets).toEqual(['BRANCHGATE_API_KEY']);
});

test('each variable in braces is described, and a key is never shown', () => {
  for (const { url, variables = {}, headers = [] } of server.remotes) {
    expect([...url.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)).toEqual(Object.keys(variables));
    for (const { value = '', variables: own = {}, isSecret } of headers) {
      expect([...value.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)).toEqual(Object.keys(own));
      expect(isSecret && Object.values(own).every((one) => one.isSecret)).toBe(true);
    }
  }
});

test.each<[string, (valid: ReturnType<typeof read>) => void]>([
  ['a range of versions', (json) => (json.packages[0].version = '^1.0.0')],
  ['a long description', (json) => (json.description = 'x'.repeat(101))],
  ['a name without a namespace', (json) => (json.name = 'branchgate')],
  ['an unknown field', (json) => (json.packages[0].runtime = 'npx')],
  ['a positional argument without a value', (json) => delete json.packages[0].packageArguments[0].value],
  ['another registry', (json) => (json.packages[0].registryBaseUrl = 'https://npm.example.com')],
])('%s is refused', (_, spoil) => {
  const json = read('server.json');
  spoil(json);
  expect(Server.safeParse(json).success).toBe(false);
});
