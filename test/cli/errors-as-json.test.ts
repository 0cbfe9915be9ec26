import { rmSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CommandLine } from '../support/command-line.ts';
import { firstByDay, IS_NIGHTLY } from '../support/nightly.ts';

const PROJECT = '018f0000-0000-7000-8000-000000000001';
const REFUSAL = {
  error: 'BRANCH_PROTECTED',
  message: 'The branch is protected. Send its name as confirm.',
  request_id: 'r',
};

/** A name of a database, which a server of a tenant's choice can have sent. */
const HOSTILE = 'book\u001b]0;owned\u0007\u009b2J\r\u202e';

/** The response to a repeated creation of an API key. */
const REPEATED_KEY = JSON.stringify({ id: 'k3v7q2xw5mza4d6b', name: 'CI', key: null });

let gateway: Server;
let cli: CommandLine;

beforeAll(async () => {
  gateway = createServer((request, response) => {
    if (request.url === '/api/v1/api-keys')
      response.writeHead(201, { 'content-type': 'application/json' }).end(REPEATED_KEY);
    else if (request.url?.includes('/branches/hostile'))
      response
        .writeHead(409, { 'content-type': 'application/json' })
        .end(JSON.stringify({ ...REFUSAL, message: HOSTILE }));
    else response.writeHead(403, { 'content-type': 'application/json' }).end(JSON.stringify(REFUSAL));
  });
  await new Promise<void>((resolve) => gateway.listen(0, '127.0.0.1', resolve));
  const { port } = gateway.address() as AddressInfo;
  cli = await CommandLine.open({
    BRANCHGATE_URL: `http://127.0.0.1:${port}`,
    BRANCHGATE_TOKEN: 'token',
    BRANCHGATE_PROJECT: PROJECT,
  });
});
afterAll(async () => {
  gateway.closeAllConnections();
  await new Promise((resolve) => gateway.close(resolve));
  rmSync(cli.folder, { recursive: true });
});

const ADVICE =
  'The branch is protected. End its protection with `branchgate branch unprotect` first. main is never deleted.';

test.each(
  firstByDay<[string, string[], number, object]>(4, [
    [
      'of the API',
      ['branch', 'delete', 'kept'],
      5,
      { error: 'BRANCH_PROTECTED', message: ADVICE, request_id: 'r' },
    ],
    [
      'of a command',
      ['branch', 'extend'],
      2,
      { error: 'USAGE', message: 'Give the new life with --ttl or --lifespan.' },
    ],
    [
      'of the words',
      ['branch', 'list', '--colour'],
      2,
      { error: 'USAGE', message: "unknown option '--colour'" },
    ],
    [
      'of a key that cannot be shown',
      ['key', 'create', 'CI'],
      1,
      {
        error: 'FAILED',
        message:
          'The response with the new key was lost, and it cannot be shown again. Run `branchgate key revoke k3v7q2xw5mza4d6b`, then create another one.',
      },
    ],
    [
      'of a value',
      ['credentials', 'rotate', '--role', 'owners'],
      2,
      {
        error: 'USAGE',
        message:
          "option '--role <role>' argument 'owners' is invalid. Allowed choices are owner, read_write, read_only.",
      },
    ],
    [
      'of a missing command',
      ['branch'],
      2,
      { error: 'USAGE', message: 'A command is missing. Run this one with --help to see them.' },
    ],
  ]),
)('an error %s is JSON on standard error with --json only', async (name, words, code, error) => {
  const { stderr, ...result } = await cli.run(...words, '--json');
  expect(result).toEqual({ code, stdout: '' });
  expect(stderr.split('\n')).toEqual([JSON.stringify(error), '']);
  if (!IS_NIGHTLY && name !== 'of the API') return;
  const plain = await cli.run(...words);
  expect(plain.code).toBe(code);
  expect(plain.stderr).not.toContain('{"error"');
  expect(plain.stderr).not.toBe('');
});

test('an error shows no control character of a database', async () => {
  for (const words of [['api', 'GET', `/api/v1/projects/${PROJECT}/branches/hostile`]]) {
    for (const more of [[], ['--json']]) {
      const { stdout, stderr } = await cli.run(...words, ...more);
      expect(stderr).toContain('\\u001b]0;owned\\u0007\\u009b2J');
      expect(stdout + stderr).not.toMatch(/[^\P{Cc}\n]|\u202e/u);
    }
  }
});

test('help is no error', async () => {
  const { code, stdout, stderr } = await cli.run('branch', 'list', '--help', '--json');
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toContain('Usage: branchgate branch list');
});
