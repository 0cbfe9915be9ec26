import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Command } from 'commander';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { completionOf } from '../../cli/commands/completion.ts';
import { documentOf } from '../../cli/document.ts';
import { EXAMPLES } from '../../cli/examples.ts';
import { CommandError, EXIT_CODES, exitCodeOf, explain } from '../../cli/exit-codes.ts';
import { commandsBelow, createProgram, examplesOf, isRunnable, wordsOf } from '../../cli/program.ts';
import { gatewayAddress } from '../../cli/session.ts';
import { JobError, ResponseError } from '../../client/response-error.ts';
import { FAILURES } from '../../shared/failures.ts';

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

/** Failures of a request that its caller wrote wrongly. Every other one with the status 422 has another exit code. */
const WRONGLY_USED = ['VALIDATION_FAILED', 'DATABASE_NAME_TOO_LONG', 'IDEMPOTENCY_KEY_REUSED'];

test('a refusal is wrong usage only if the caller wrote the request wrongly', () => {
  const refusals = Object.entries(FAILURES).filter(([, { status }]) => status === 422);
  const wronglyUsed = refusals
    .map(([error]) => error)
    .filter(
      (error) =>
        exitCodeOf(new ResponseError(new Response(null, { status: 422 }), { error, message: '' })) ===
        EXIT_CODES.usage.code,
    );
  expect(wronglyUsed).toEqual(WRONGLY_USED);
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
    [response(412, 'MASKING_CHANGED'), 6],
    [response(429, 'BRANCH_LIMIT_REACHED'), 7],
    [response(409, 'STORAGE_QUOTA_EXCEEDED'), 7],
    [response(503, 'HOST_UNAVAILABLE'), 8],
    [response(504, 'HOST_TIMEOUT'), 8],
    [response(500, 'INTERNAL'), 1],
    [response(422, 'STATEMENT_REFUSED'), 1],
    [response(422, 'TIME_LIMIT_REACHED'), 124],
    [new JobError({ id: 'j', error: { code: 'SOURCE_BUSY', message: '' } }), 6],
    [new JobError({ id: 'j', error: { code: 'HOST_FULL', message: '' } }), 7],
    [new TypeError('fetch failed'), 8],
    [timeout, 124],
    [response(422, 'SOURCE_UNSUITABLE'), 6],
    [response(422, 'QUOTA_ABOVE_SELF_SERVICE_CAP'), 7],
    [response(422, 'CONNECTION_ATTEMPTS_ABOVE_MAX'), 7],
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

describe('the advice about a response 401', () => {
  const explained = (error: string) =>
    explain(new ResponseError(new Response(null, { status: 401 }), { error, message: 'It failed.' }));
  afterEach(() => {
    vi.unstubAllEnvs();
  });

  test.each([
    ['', 'It failed. (UNAUTHENTICATED) Run `branchgate login`, or set BRANCHGATE_API_KEY.'],
    [
      'bg_expired',
      'It failed. (UNAUTHENTICATED) The token in BRANCHGATE_API_KEY or BRANCHGATE_TOKEN was rejected. Replace or unset it.',
    ],
  ])('with the API key %j', (key, text) => {
    vi.stubEnv('BRANCHGATE_API_KEY', key);
    vi.stubEnv('BRANCHGATE_TOKEN', '');
    expect(explained('UNAUTHENTICATED')).toBe(text);
  });

  test('a wrong password gets none', () => {
    expect(explained('CREDENTIALS_WRONG')).toBe('It failed. (CREDENTIALS_WRONG)');
  });
});

describe('the advice about a protected branch', () => {
  const refusal = new ResponseError(new Response(null, { status: 403 }), {
    error: 'BRANCH_PROTECTED',
    message: 'The branch is protected. Send its name as confirm.',
  });
  const commands = new Map(commandsBelow(program).map((command) => [wordsOf(command).join(' '), command]));

  test.each([
    ['branch delete', 'The branch is protected. (BRANCH_PROTECTED) End its protection with'],
    ['branch reset', 'The branch is protected. (BRANCH_PROTECTED) Give its name with --confirm.'],
    ['branch create', 'The branch is protected. (BRANCH_PROTECTED) Reset it with `branchgate branch reset`'],
    ['branch extend', 'The branch is protected. (BRANCH_PROTECTED) main never expires.'],
    ['branch unprotect', 'The branch is protected. (BRANCH_PROTECTED) main is always protected.'],
    ['query', 'The branch is protected. (BRANCH_PROTECTED) Change rows with `branchgate psql`'],
    ['api', 'The branch is protected. Send its name as confirm. (BRANCH_PROTECTED)'],
  ])('fits %s', (words, expected) => {
    const command = commands.get(words);
    expect(command).toBeDefined();
    const text = explain(refusal, command);
    expect(text).toContain(expected);
    const options = command?.options.map(({ long }) => long);
    for (const [option] of text.matchAll(/--[a-z-]+/g)) expect(options).toContain(option);
  });
});

describe('a command against a gateway', () => {
  /** Runs a command whose requests get this response. */
  async function run(args: string[], response: (request?: Request) => Response | Promise<Response>) {
    vi.stubEnv('BRANCHGATE_URL', 'https://gateway.test');
    vi.stubEnv('BRANCHGATE_TOKEN', 'token');
    vi.stubEnv('BRANCHGATE_PLATFORM_SECRET', 'secret');
    vi.stubGlobal('fetch', async (request?: Request) => response(request));
    const output = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
    try {
      const ended = createProgram('1.2.3').parseAsync(args, { from: 'user' });
      const error = await ended.then(
        () => null,
        (reason: unknown) => reason,
      );
      return { error, printed: output.mock.calls.join('') };
    } finally {
      output.mockRestore();
      vi.unstubAllGlobals();
      vi.unstubAllEnvs();
    }
  }

  test('an unknown field prints every field, because a key is shown only once', async () => {
    const created = { id: 'i', key: 'bg_k' };
    const { error, printed } = await run(['key', 'create', 'CI', '--json', 'id,secret'], () =>
      Response.json(created, { status: 201 }),
    );
    expect(JSON.parse(printed)).toEqual(created);
    expect(error).toMatchObject({
      exit: 'failed',
      message: 'Unknown field secret; all fields are printed. The command has been carried out.',
    });
  });

  const PROJECTS = ['a', 'b'].map((letter) => ({
    id: `${letter.repeat(8)}-0000-4000-8000-000000000000`,
    name: 'shop',
    created_at: '2026-11-28T12:00:00.000Z',
  }));
  const projects = () => Response.json({ projects: PROJECTS, next_cursor: null });

  test('of an ambiguous name lists the projects with their IDs', async () => {
    for (const words of [['--project', 'shop'], []]) {
      const { error } = await run(['branch', 'list', ...words], projects);
      expect(error).toMatchObject({ exit: 'usage' });
      for (const { id } of PROJECTS)
        expect((error as Error).message).toContain(`\n  ${id}  shop, created 2026-11-28`);
    }
  });

  test('a second project of a name is created on request only', async () => {
    const { error } = await run(['project', 'create', 'shop'], projects);
    expect(error).toMatchObject({ exit: 'conflict', message: expect.stringContaining('--allow-duplicate') });
    const found = await run(['project', 'create', 'shop', '--if-exists', 'return', '--json', 'id'], projects);
    expect(found).toEqual({ error: null, printed: expect.stringContaining(PROJECTS[0]?.id ?? '-') });
  });

  test.each([
    [[], { BRANCHGATE_PROJECT: PROJECTS[0]?.id }, PROJECTS[0]?.id],
    [['--project', PROJECTS[1]?.id], { BRANCHGATE_PROJECT: PROJECTS[0]?.id }, PROJECTS[1]?.id],
    [['--all-projects'], { BRANCHGATE_PROJECT: PROJECTS[0]?.id }, undefined],
    [[], {}, undefined],
  ])('an API key with %j and %j is for %s', async (words, environment, project) => {
    for (const [name, value] of Object.entries(environment)) vi.stubEnv(name, value);
    const sent = vi.fn();
    const { error } = await run(['key', 'create', 'CI', ...(words as string[])], async (request) => {
      sent(await request?.json());
      return Response.json({ id: 'i', key: 'bg_k' }, { status: 201 });
    });
    expect(error).toBeNull();
    expect(sent.mock.calls[0]?.[0].project_id).toBe(project);
  });

  test('a rejected operator secret is named', async () => {
    const { error } = await run(['host', 'list'], () =>
      Response.json({ error: 'UNAUTHENTICATED' }, { status: 401 }),
    );
    expect(error).toMatchObject({
      exit: 'notSignedIn',
      message: expect.stringContaining('BRANCHGATE_PLATFORM_SECRET'),
    });
  });
});

test.each([
  ['a=1', 'b=2'],
  ['a=1', 'a=2'],
])('branch list refuses the labels %s and %s', async (first, second) => {
  const fresh = createProgram('1.2.3');
  parseOnly(fresh);
  const args = ['branch', 'list', '--label', first, '--label', second];
  await expect(fresh.parseAsync(args, { from: 'user' })).rejects.toThrow('Give --label once.');
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
  test.each<[string, string[], string[], string | null]>([
    ['a command', ['pro'], ['profile', 'project'], null],
    ['a subcommand', ['branch', ''], ['list', 'create', 'get', 'reset', 'restore', 'delete'], null],
    ['an option of the command and of the program', ['branch', 'list', '--'], ['--status', '--json'], null],
    ['a choice', ['branch', 'list', '--status', ''], ['active', 'expired'], null],
    ['a branch as an argument', ['branch', 'get', 'p'], [], 'branches'],
    ['a second branch', ['branch', 'delete', 'one', ''], [], 'branches'],
    ['no second branch', ['branch', 'get', 'one', ''], [], null],
    ['a branch as an option', ['exec', '--branch', ''], [], 'branches'],
    ['a source', ['branch', 'create', 'x', '--from', ''], [], 'branches'],
    ['no branch as the address of an import', ['import', '--from', ''], [], null],
    ['a deleted branch', ['branch', 'restore', ''], [], 'deleted'],
    ['a snapshot', ['branch', 'reset', 'one', '--to', ''], [], 'snapshots'],
    ['a project', ['branch', 'list', '--project', ''], [], 'projects'],
    ['a choice in the same word', ['branch', 'list', '--status='], ['active', 'expired'], null],
    ['no value of an option without one', ['branch', 'list', '--json='], [], null],
    ['a profile', ['profile', 'use', ''], [], 'profiles'],
    ['a host', ['host', 'drain', ''], [], 'hosts'],
    ['a table', ['rows', ''], [], 'tables'],
    ['a shell', ['completion', ''], ['bash', 'zsh', 'fish'], null],
  ])('%s', (_, line, expected, names) => {
    const found = completionOf(program, line);
    expect(found.names).toBe(names);
    expect(found.words).toEqual(expect.arrayContaining(expected));
    if (expected.length === 0) expect(found.words).toEqual([]);
  });
});

describe('completion of a line with typed options', () => {
  const projects = [
    { id: '018f0000-0000-7000-8000-000000000001', name: 'blog' },
    { id: '018f0000-0000-7000-8000-000000000002', name: 'shop' },
  ];
  const [, shop] = projects;
  const answers: Record<string, object> = {
    '/api/v1/projects': { projects, next_cursor: null },
    [`/api/v1/projects/${shop?.id}/branches`]: { branches: [{ branch_name: 'of-shop' }] },
    [`/api/v1/projects/${shop?.id}/branches/pr-1/tables`]: { tables: [{ name: 'of_pr_1' }] },
  };

  afterEach(() => {
    vi.unstubAllEnvs();
    vi.unstubAllGlobals();
    vi.restoreAllMocks();
  });

  test.each([
    [['branch', 'get', '--project', 'shop', ''], 'of-shop\n'],
    [['--project=shop', 'branch', 'get', ''], 'of-shop\n'],
    [['exec', '--project', 'shop', '--branch', 'of'], 'of-shop\n'],
    [['rows', '--project', 'shop', '--branch', 'pr-1', ''], 'of_pr_1\n'],
    [['rows', '--branch=pr-1', '--project', 'shop', ''], 'of_pr_1\n'],
    [['branch', 'list', '--project=s'], '--project=shop\n'],
    // As bash splits it.
    [['branch', 'list', '--project', '='], 'blog\nshop\n'],
    [['branch', 'list', '--project', '=', 's'], 'shop\n'],
    [['branch', 'get', '--project', '=', 'shop', ''], 'of-shop\n'],
  ])('%j offers names of what is typed', async (line, expected) => {
    vi.stubEnv('BRANCHGATE_URL', 'https://gateway.test');
    vi.stubEnv('BRANCHGATE_TOKEN', 'token');
    vi.stubEnv('BRANCHGATE_PROJECT', projects[0]?.id);
    vi.stubGlobal('fetch', async ({ url }: Request) => {
      const answer = answers[new URL(url).pathname];
      return answer ? Response.json(answer) : Response.json({ error: 'NOT_FOUND' }, { status: 404 });
    });
    const output = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
    await createProgram('1.2.3').parseAsync(['__complete', '--', ...line], { from: 'user' });
    expect(output.mock.calls.join('')).toBe(expected);
  });
});

/** A command without its action, so that a line is only parsed. */
function parseOnly(command: Command): void {
  for (const one of commandsBelow(command)) one.action(() => {});
}

const SHELL = /^(?:source <\((?<substituted>.+)\)|(?<plain>[^|>]+))(?: \|.*| >.*)?$/;

test.each(
  commandsBelow(program)
    .filter((command) => command.parent !== null && isRunnable(command) && !command.name().startsWith('_'))
    .map((command) => [wordsOf(command).join(' '), command] as const),
)('%s has examples, which it accepts', async (words, command) => {
  const examples = examplesOf(command);
  expect(examples).not.toEqual([]);
  for (const example of examples) {
    const { substituted, plain = '' } = SHELL.exec(example)?.groups ?? {};
    const line = (substituted ?? plain).trim();
    expect(line.startsWith(`branchgate ${words}`)).toBe(true);
    const fresh = createProgram('1.2.3').configureOutput({ writeErr: () => {} });
    parseOnly(fresh);
    const args = (line.match(/'[^']*'|\S+/g) ?? []).slice(1).map((word) => word.replaceAll("'", ''));
    await fresh.parseAsync(args, { from: 'user' });
  }
});

/** Every line of a shell block of the documents that begins with the command line. */
const documented = [
  'README.md',
  ...readdirSync(join(ROOT, 'docs'))
    .filter((name) => name.endsWith('.md') && name !== 'cli.md')
    .map((name) => `docs/${name}`),
].flatMap((file) => {
  const blocks = [...readFileSync(join(ROOT, file), 'utf8').matchAll(/^```sh\n(.*?)^```$/gms)];
  const lines = blocks.flatMap(([, block = '']) => block.replaceAll(/\\\n\s*/g, ' ').split('\n'));
  return lines.filter((line) => /^branchgate /.test(line)).map((line) => [file, line] as const);
});

test.each(documented)('%s: the command line accepts %s', async (_, line) => {
  const [command = ''] = line.split(/ (?:#|\||>>?|&&|<) ?/);
  const words = (command.match(/(?:'[^']*'|"[^"]*"|[^\s'"])+/g) ?? []).slice(1);
  const fresh = createProgram('1.2.3').configureOutput({ writeErr: () => {} });
  for (const one of commandsBelow(fresh)) one.configureOutput({ writeErr: () => {} });
  parseOnly(fresh);
  await fresh.parseAsync(
    words.map((word) => word.replaceAll(/['"]/g, '')),
    { from: 'user' },
  );
});

test('no example is left over', () => {
  const words = commandsBelow(program).map((command) => wordsOf(command).join(' '));
  expect(Object.keys(EXAMPLES).filter((key) => !words.includes(key))).toEqual([]);
});

describe('options of rows', () => {
  const parse = async (...args: string[]) => {
    const fresh = createProgram('1.2.3');
    for (const command of commandsBelow(fresh)) command.configureOutput({ writeErr: () => {} });
    parseOnly(fresh);
    await fresh.parseAsync(['rows', 'book', ...args], { from: 'user' });
    return fresh.commands.find((command) => command.name() === 'rows')?.opts();
  };

  test.each([
    ['title contains war and eq peace', { column: 'title', operator: 'contains', value: 'war and eq peace' }],
    ['two words ge 10', { column: 'two words', operator: 'ge', value: '10' }],
    ['note eq ', { column: 'note', operator: 'eq', value: '' }],
    ['ended is_null', { column: 'ended', operator: 'is_null' }],
  ])('--filter %j', async (text, filter) => {
    expect(await parse('--filter', text, '--filter', 'id gt 1')).toMatchObject({
      filter: [filter, { column: 'id', operator: 'gt', value: '1' }],
    });
  });

  test.each(['title', 'title like x', 'title is_null x', 'eq 1'])('--filter %j is refused', async (text) => {
    await expect(parse('--filter', text)).rejects.toThrow('operator');
  });

  test('--order', async () => {
    expect(await parse('--order', 'price desc', '--order', 'two words')).toMatchObject({
      order: [
        { column: 'price', direction: 'desc' },
        { column: 'two words', direction: 'asc' },
      ],
    });
  });
});

describe('the schedule of snapshots', () => {
  const id = '018f0000-0000-7000-8000-000000000001';
  const present = { every: '6h', keep: 30 };

  /** What `project update` sends when the project has this schedule. */
  async function sent(schedule: object | null, options: string): Promise<unknown> {
    const bodies: unknown[] = [];
    vi.stubEnv('BRANCHGATE_URL', 'https://gateway.test');
    vi.stubEnv('BRANCHGATE_TOKEN', 'token');
    vi.stubGlobal('fetch', async (request: Request) => {
      if (request.method === 'PATCH') bodies.push(await request.json());
      return Response.json({ id, snapshot_schedule: schedule });
    });
    const output = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
    try {
      const fresh = createProgram('1.2.3');
      await fresh.parseAsync(['project', 'update', id, ...options.split(' ')], { from: 'user' });
      return bodies;
    } finally {
      output.mockRestore();
      vi.unstubAllGlobals();
      vi.unstubAllEnvs();
    }
  }

  test.each<[object | null, string, object | null]>([
    [present, '--snapshot-every 1d', { every: '1d', keep: 30 }],
    [present, '--snapshot-keep 3', { every: '6h', keep: 3 }],
    [present, '--snapshot-every 1d --snapshot-keep 3', { every: '1d', keep: 3 }],
    [present, '--snapshot-every never', null],
    [null, '--snapshot-every 1d', { every: '1d', keep: 7 }],
  ])('%j with %s is %j', async (before, options, snapshot_schedule) => {
    expect(await sent(before, options)).toEqual([{ snapshot_schedule }]);
  });

  test('stays as it is when something else is changed', async () => {
    expect(await sent(present, '--name shop')).toEqual([{ name: 'shop' }]);
  });

  test.each([
    [null, '--snapshot-keep 3 --name shop'],
    [present, '--snapshot-every never --snapshot-keep 3'],
  ])('%j with %s is refused', async (before, options) => {
    await expect(sent(before, options)).rejects.toMatchObject({ exit: 'usage' });
  });
});
