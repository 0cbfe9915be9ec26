import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { candidatesOf } from '../../cli/commands/completion.ts';
import { documentOf } from '../../cli/document.ts';
import { CommandError, EXIT_CODES, exitCodeOf, explain } from '../../cli/exit-codes.ts';
import { commandsBelow, createProgram } from '../../cli/program.ts';
import { gatewayAddress } from '../../cli/session.ts';
import { JobError, ResponseError } from '../../client/response-error.ts';

const ROOT = join(import.meta.dirname, '../..');
const program = createProgram('1.2.3');

test('docs/cli.md describes the commands as they are', () => {
  expect(readFileSync(join(ROOT, 'docs/cli.md'), 'utf8')).toBe(documentOf(program));
});

test('every command, option and argument that is not obvious has a description', () => {
  const silent = commandsBelow(program)
    .filter((command) => !command.name().startsWith('_'))
    .flatMap((command) => [
      ...(command.description() ? [] : [command.name()]),
      ...command.options
        .filter(({ description }) => !description)
        .map(({ flags }) => `${command.name()} ${flags}`),
    ]);
  expect(silent).toEqual([]);
});

test('the help lists every exit code', () => {
  let help = '';
  createProgram('1.2.3')
    .configureOutput({ writeOut: (text) => (help += text) })
    .exitOverride()
    .outputHelp();
  for (const { code, meaning } of Object.values(EXIT_CODES))
    expect(help).toMatch(new RegExp(`\\b${code} +${meaning}`));
});

describe('exit codes', () => {
  const response = (status: number, error: string) =>
    new ResponseError(new Response(null, { status }), { error, message: 'It failed.', request_id: 'r' });
  const timeout = Object.assign(new Error('late'), { name: 'TimeoutError' });

  test.each<[unknown, number]>([
    [response(422, 'VALIDATION_FAILED'), 2],
    [response(404, 'NOT_FOUND'), 3],
    [response(401, 'UNAUTHENTICATED'), 4],
    [response(403, 'FORBIDDEN'), 5],
    [response(403, 'BRANCH_PROTECTED'), 5],
    [response(409, 'BRANCH_EXISTS'), 6],
    [response(429, 'BRANCH_LIMIT_REACHED'), 7],
    [response(409, 'STORAGE_QUOTA_EXCEEDED'), 7],
    [response(503, 'HOST_UNAVAILABLE'), 8],
    [response(504, 'HOST_TIMEOUT'), 8],
    [response(500, 'INTERNAL'), 1],
    [response(422, 'STATEMENT_REFUSED'), 1],
    [new JobError({ id: 'j', error: { code: 'SOURCE_BUSY', message: '' } }), 6],
    [new JobError({ id: 'j', error: { code: 'HOST_FULL', message: '' } }), 7],
    [new TypeError('fetch failed'), 8],
    [timeout, 124],
    [new CommandError('notSignedIn', ''), 4],
    [new Error('a defect'), 1],
  ])('%o is %i', (error, code) => {
    expect(exitCodeOf(error)).toBe(code);
  });

  test('a failure of the API is explained with its code and its details', () => {
    const details = [{ path: 'branch_name', message: 'Too small' }];
    const invalid = new ResponseError(new Response(null, { status: 422 }), {
      error: 'VALIDATION_FAILED',
      message: 'The request has invalid values. See details.',
      details,
    });
    expect(explain(invalid)).toBe(
      'The request has invalid values. See details. (VALIDATION_FAILED)\n  branch_name: Too small',
    );
  });
});

describe('the address of a gateway', () => {
  test.each([
    ['https://api.example.com/', 'https://api.example.com'],
    ['http://127.0.0.1:8787', 'http://127.0.0.1:8787'],
    ['http://localhost:8787/', 'http://localhost:8787'],
  ])('%s is accepted', (given, address) => {
    expect(gatewayAddress(given)).toBe(address);
  });

  test.each([
    'http://api.example.com',
    'http://127.0.0.1.example.com',
    'ftp://example.com',
    'example.com',
    '',
  ])('%s is refused, because a token would be readable on the way', (given) => {
    expect(() => gatewayAddress(given)).toThrow(CommandError);
  });
});

describe('completion', () => {
  test.each<[string, string[], string[], boolean]>([
    ['a command', ['pro'], ['profile', 'project'], false],
    ['a subcommand', ['branch', ''], ['list', 'create', 'get', 'extend', 'delete'], false],
    ['an option of the command and of the program', ['branch', 'list', '--'], ['--status', '--json'], false],
    ['a choice', ['branch', 'list', '--status', ''], ['active', 'expired'], false],
    ['a branch as an argument', ['branch', 'get', 'p'], [], true],
    ['a second branch', ['branch', 'delete', 'one', ''], [], true],
    ['no second branch', ['branch', 'get', 'one', ''], [], false],
    ['a branch as an option', ['exec', '--branch', ''], [], true],
    ['a source', ['branch', 'create', 'x', '--from', ''], [], true],
    ['a shell', ['completion', ''], ['bash', 'zsh', 'fish'], false],
  ])('%s', (_, line, expected, branches) => {
    const found = candidatesOf(program, line);
    expect(found.branches).toBe(branches);
    expect(found.words).toEqual(expect.arrayContaining(expected));
    if (expected.length === 0) expect(found.words).toEqual([]);
  });
});
