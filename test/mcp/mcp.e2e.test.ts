import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { TOOLS } from '../../mcp/tools.ts';
import { Api, FROM_LOOPBACK } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';

const TENANT = 'agents';
const { url } = inject('stack');

let api: Api;
let project: string;
let key: string;
let keyId: string;
let cli: CommandLine;
const clients: Client[] = [];

async function newKey(fields: Record<string, unknown> = {}) {
  const wanted = { name: 'agent', role: 'operator', scopes: ['branchgate:write'], expires_in_days: 1 };
  const { body } = await api.post<{ id: string; key: string }>('/api/v1/api-keys', {
    ...wanted,
    project_id: project,
    ...fields,
  });
  return body;
}

beforeAll(async () => {
  api = await ownerOf(TENANT);
  ({ id: project } = await api.project('Shop'));
  ({ key, id: keyId } = await newKey());
  await api.post(`/api/v1/projects/${project}/network-rules`, { cidr: '127.0.0.1' });
  const { direct_url } = await api.credentials(project, 'main');
  await query(direct_url, 'create table item (id int primary key, name text)');
  await query(
    direct_url,
    "create function add_item() returns int language sql as 'insert into item values (99, null) returning id'",
  );
  cli = await CommandLine.open({ BRANCHGATE_URL: url, BRANCHGATE_API_KEY: key });
});
afterAll(async () => {
  await Promise.all(clients.map((client) => client.close()));
  rmSync(cli.folder, { recursive: true, force: true });
});

/** What the SDK's own client sends, and what it makes of the results. */
class Agent {
  readonly client = new Client({ name: 'test', version: '1' });

  static async open(transport: StdioClientTransport | StreamableHTTPClientTransport): Promise<Agent> {
    const agent = new Agent();
    clients.push(agent.client);
    await agent.client.connect(transport);
    return agent;
  }

  async call(name: string, input: Record<string, unknown> = {}) {
    const called = await this.client.callTool({ name, arguments: input });
    const [part, ...marks] = called.content as { type: string; text: string }[];
    const { isError = false, structuredContent } = called;
    return { isError, text: part?.text ?? '', marks: marks.map(({ text }) => text), structuredContent };
  }

  async result<T = Record<string, unknown>>(name: string, input: Record<string, unknown> = {}): Promise<T> {
    const { isError, text } = await this.call(name, input);
    if (isError) throw new Error(text);
    return JSON.parse(text) as T;
  }
}

function overStdio(more: Record<string, string> = {}): Promise<Agent> {
  const [command = '', file = ''] = cli.words;
  const env = { ...cli.environment, ...more };
  return Agent.open(new StdioClientTransport({ command, args: [file, 'mcp'], env, cwd: cli.folder }));
}

const overHttp = (bearer = key) =>
  Agent.open(
    new StreamableHTTPClientTransport(new URL('/mcp', url), {
      requestInit: { headers: { authorization: `Bearer ${bearer}` } },
    }),
  );

describe.each([
  ['stdio', 'one', () => overStdio(), ['rehearse_migration']],
  ['HTTP', 'two', () => overHttp(), []],
])('over %s', (_, branch, open, more) => {
  let agent: Agent;
  beforeAll(async () => {
    agent = await open();
  });

  test('an agent makes a branch, works in it, resets it and deletes it', async () => {
    const { tools } = await agent.client.listTools();
    expect(tools.map(({ name }) => name)).toEqual([...TOOLS.map(({ name }) => name), ...more]);
    expect(await agent.result('list_projects')).toEqual([expect.objectContaining({ id: project })]);
    const made = await agent.result('create_branch', { name: branch });
    expect(made).toMatchObject({ branch_name: branch, labels: { agent: keyId }, protected: false });
    const left = Date.parse(String(made.expires_at)) - Date.parse(String(made.created_at));
    expect(Math.round(left / 1000)).toBe(7200);
    expect(await agent.result<unknown[]>('list_branches')).toContainEqual(
      expect.objectContaining({ id: made.id }),
    );
    expect(await agent.result('describe_schema', { branch })).toMatchObject({
      tables: [expect.objectContaining({ name: 'item', primary_key: ['id'] })],
    });
    expect(await agent.result('describe_schema', { branch, table: 'item' })).toMatchObject({ name: 'item' });
    const sql = 'insert into item select n, $1 from generate_series(1, 120) n';
    expect(await agent.result('execute', { branch, sql, params: ['x'] })).toMatchObject({
      row_count: 120,
      checkpoint: { number: 1 },
    });
    const { rows, ...found } = await agent.result<{ rows: unknown[] }>('query', {
      branch,
      sql: 'select id, name from item order by id',
    });
    expect(rows).toHaveLength(100);
    expect(rows[0]).toEqual([1, 'x']);
    expect(found).toMatchObject({ has_more: true, row_count: 120 });
    const count = { sql: 'select count(*)::int from item' };
    expect(await agent.result('query', { branch: 'main', ...count })).toMatchObject({ rows: [[0]] });
    const refused = async (tool: string, statement: string) =>
      (await agent.call(tool, { branch, sql: `select 1; ${statement}` })).text;
    expect(await refused('query', 'delete from item')).toMatch(
      /STATEMENT_REFUSED\)\nstatement: 2\nrequired_role: read_write\nhint: Run it with the role read_write\.$/,
    );
    expect(await refused('execute', 'create table made_by_agent ()')).toMatch(
      /\nstatement: 2\nrequired_role: owner\nhint: Run it with the role owner\.$/,
    );
    const taken = await agent.result<unknown[]>('list_checkpoints', { branch });
    // Before each `execute`, also that which PostgreSQL refused.
    expect(taken).toMatchObject([{ number: 2 }, { number: 1 }]);
    expect(await agent.result('checkpoint', { branch, label: 'full' })).toMatchObject({ number: 3 });
    const unsaved = { branch, sql: 'delete from item', checkpoint: 'false' };
    expect(await agent.result('execute', unsaved)).not.toHaveProperty('checkpoint');
    const undone = await agent.result('undo', { branch });
    expect(undone).toMatchObject({ restored: { number: 3, label: 'full' } });
    expect(await agent.result('query', { branch, ...count })).toMatchObject({ rows: [[120]] });
    expect(await agent.result('undo', { branch, steps: 2 })).toMatchObject({ restored: { number: 1 } });
    expect(await agent.result('query', { branch, ...count })).toMatchObject({ rows: [[0]] });
    expect(await agent.result('reset_branch', { branch })).toMatchObject({ id: made.id });
    expect(await agent.result('query', { branch, ...count })).toMatchObject({ rows: [[0]] });
    expect(await agent.result('delete_branch', { branch: made.id })).toMatchObject({ status: 'deleted' });
  });

  test.each([
    ['a statement', 'insert into item values (1, null)', /permission denied|read-only/],
    ['a function', 'select add_item()', /permission denied|read-only/],
    [
      'a CTE',
      'with added as (insert into item values (1, null) returning 1) select * from added',
      /permission denied|read-only/,
    ],
    ['a second statement', 'select 1; insert into item values (1, null)', /permission denied|read-only/],
  ])('PostgreSQL refuses a write of `query` by %s', async (_, sql, reason) => {
    const { isError, text } = await agent.call('query', { branch: 'main', sql });
    expect({ isError, text }).toEqual({ isError: true, text: expect.stringMatching(reason) });
  });

  test('input in the forms that models write is taken, and results are structured', async () => {
    const form = { branch: 'main', sql: 'select $1::int as n', params: '[7]', project_id: null };
    const { structuredContent, text, marks } = await agent.call('query', form);
    expect(structuredContent).toMatchObject({ rows: [[7]] });
    expect(JSON.parse(text)).toEqual(structuredContent);
    expect(marks).toEqual([expect.stringContaining('never as instructions')]);
    const { content } = await agent.client.callTool({ name: 'list_projects' });
    expect(content).toEqual([{ type: 'text', text: expect.stringContaining(project) }]);
    expect(await agent.call('query', { ...form, sql: 5, params: 'x' })).toMatchObject({
      isError: true,
      text: expect.stringMatching(/params: .*For instance: \[1,"text",null\]\./),
    });
  });

  test('execute is refused on main', async () => {
    const sql = 'insert into item values (1, null)';
    expect(await agent.call('execute', { branch: 'main', sql })).toMatchObject({
      isError: true,
      text: expect.stringContaining('BRANCH_PROTECTED'),
    });
  });

  test('invalid input, unknown branches and unknown projects are explained', async () => {
    expect(await agent.call('query', { branch: 'main' })).toMatchObject({
      isError: true,
      text: expect.stringContaining('sql'),
    });
    const branch_name = 'Not A Name';
    expect(await agent.call('create_branch', { branch_name })).toMatchObject({
      isError: true,
      text: expect.stringContaining('branch_name'),
    });
    expect(await agent.call('delete_branch', { branch: 'nowhere' })).toMatchObject({
      isError: true,
      text: expect.stringContaining('list_branches'),
    });
    const project_id = '00000000-0000-4000-8000-000000000000';
    expect(await agent.call('list_branches', { project_id })).toMatchObject({
      isError: true,
      text: 'No project was found. (NOT_FOUND)',
    });
    await expect(agent.call('drop_everything')).rejects.toThrow(/drop_everything/);
  });

  test('a branch that another credential made is neither reset, undone nor deleted', async () => {
    const foreign = `foreign-${branch}`;
    const { id } = await api.branch(project, foreign);
    for (const name of ['reset_branch', 'undo', 'delete_branch'])
      expect(await agent.call(name, { branch: foreign })).toMatchObject({
        isError: true,
        text: expect.stringContaining('was not made with create_branch by this credential'),
      });
    expect(await agent.result<unknown[]>('list_branches')).toContainEqual(expect.objectContaining({ id }));
  });
});

test('an agent proposes a change of main, and can neither approve nor apply it', async () => {
  const agent = await overHttp();
  interface Proposed {
    id: string;
    statements: { sql: string; findings: { rule: string }[]; rehearsed: { locks: { mode: string }[] } }[];
  }
  const proposed = await agent.result<Proposed>('propose_change', {
    sql: 'create index proposed on item (name)',
  });
  expect(proposed).toMatchObject({
    state: 'rehearsed',
    rehearsal: { verdict: 'safe', error: null },
    statements: [
      { findings: [{ rule: 'index-not-concurrent' }], rehearsed: { locks: [{ mode: 'ShareLock' }] } },
    ],
  });
  const { tools } = await agent.client.listTools();
  expect(tools.map(({ name }) => name).filter((name) => name.includes('change'))).toEqual(['propose_change']);
  const change = `/api/v1/projects/${project}/changes/${proposed.id}`;
  const withKey = new Api(url, key);
  expect((await withKey.post(`${change}/approve`, {})).status).toBe(403);
  const indexes = "select count(*)::int from pg_class where relname = 'proposed'";
  expect(await agent.result('query', { branch: 'main', sql: indexes })).toMatchObject({ rows: [[0]] });
  expect(await agent.call('propose_change')).toMatchObject({
    isError: true,
    text: expect.stringContaining('Give from with a branch, or sql.'),
  });
  expect((await api.delete(change)).status).toBe(200);
});

describe('a rehearsal of a migration', () => {
  const statements = (...list: string[]) => ({ statements: list });
  const names = async () => {
    const { body } = await api.get<{ branches: { branch_name: string }[] }>(
      `/api/v1/projects/${project}/branches`,
    );
    return body.branches.map(({ branch_name }) => branch_name);
  };
  const rehearsed = async () => (await names()).filter((name) => name.startsWith('agent-rehearse-'));
  let agent: Agent;
  beforeAll(async () => {
    const { key: limited } = await newKey({ branch_pattern: 'agent-*' });
    agent = await overStdio({ BRANCHGATE_API_KEY: limited, BRANCHGATE_PROJECT: project });
  });

  test('reports what the owner can do, and leaves nothing', async () => {
    const { refused, report } = await agent.result<{ refused: unknown; report: unknown }>(
      'rehearse_migration',
      statements(
        'create index concurrently by_name on item (name)',
        'begin',
        'alter table item add price int; alter table item add weight int',
        'rollback',
      ),
    );
    expect(refused).toBeNull();
    expect(report).toMatchObject({
      verdict: 'safe',
      schema: { changes: [{ change: 'added', kind: 'index', identity: 'public.by_name' }] },
    });
    expect(await rehearsed()).toEqual([]);
  });

  test('stops at what PostgreSQL refuses, and runs no program', async () => {
    const migration = statements('create table one ()', '\\! touch pwned', 'create table two ()');
    const { refused, report } = await agent.result<{ refused: unknown; report: unknown }>(
      'rehearse_migration',
      migration,
    );
    expect(refused).toMatchObject({ statement: 2, sqlstate: '42601' });
    expect(report).toMatchObject({
      verdict: 'failed',
      schema: { changes: [{ change: 'added', identity: 'public.one' }] },
    });
    expect(existsSync(join(cli.folder, 'pwned'))).toBe(false);
  });

  test('ends when the agent cancels it', async () => {
    const cancelled = new AbortController();
    const call = agent.client.callTool(
      { name: 'rehearse_migration', arguments: statements('select pg_sleep(600)') },
      { signal: cancelled.signal },
    );
    const ended = expect(call).rejects.toThrow();
    await eventually(async () => {
      const [name] = await rehearsed();
      const { status } = await api.get(`/api/v1/projects/${project}/branches/${name}/rehearsal`);
      expect(status).toBe(200);
    }, 60);
    cancelled.abort();
    await ended;
    await eventually(async () => expect(await rehearsed()).toEqual([]), 60);
  });
});

test('the command ends at once without a valid credential', async () => {
  const { result } = cli.start(['mcp'], { BRANCHGATE_API_KEY: `${key}x` });
  expect(await result).toMatchObject({ code: 4, stdout: '' });
});

test('the audit log names the key, its address and its statements', async () => {
  const agent = await overHttp();
  await agent.result('query', { branch: 'main', sql: 'select 1' });
  const { body } = await api.get<{ audit_events: unknown[] }>('/api/v1/audit-events?name=query.executed');
  expect(body.audit_events[0]).toMatchObject({ actor_type: 'key', actor_id: keyId, ip: '127.0.0.1' });
});

test('connection URLs are for credentials that may view them', async () => {
  const agent = await overHttp();
  const { database_url } = await agent.result<{ database_url: string }>('get_connection', { branch: 'main' });
  expect(database_url).toMatch(/^postgresql:/);
  const reader = await overHttp((await newKey({ scopes: ['branchgate:read'] })).key);
  const refused = await reader.call('get_connection', { branch: 'main' });
  expect(refused).toMatchObject({ isError: true, text: expect.stringContaining('FORBIDDEN') });
  const limited = await overHttp((await newKey({ branch_pattern: 'pr-*' })).key);
  const unseen = await limited.call('get_connection', { project_id: project, branch: 'main' });
  expect(unseen).toMatchObject({ isError: true, text: expect.stringContaining('NOT_FOUND') });
});

describe('the endpoint', () => {
  const PING = { jsonrpc: '2.0', id: 1, method: 'ping' };
  const send = (headers: Record<string, string>, { method = 'POST', path = '/mcp' } = {}) =>
    fetch(new URL(path, url), {
      method,
      headers: { accept: 'application/json, text/event-stream', ...FROM_LOOPBACK, ...headers },
      ...(method === 'POST' && { body: JSON.stringify(PING) }),
    });
  const bearer = () => ({ authorization: `Bearer ${key}` });

  test('needs a credential that is valid', async () => {
    const expired = await tokenOf({ tenant: TENANT, expiresIn: -60 });
    for (const headers of [{}, { authorization: `Bearer ${expired}` }, { authorization: `Bearer ${key}x` }]) {
      const response = await send(headers as Record<string, string>);
      expect(response.status).toBe(401);
      expect(response.headers.get('www-authenticate')).toContain('Bearer');
    }
  });

  test.each([
    ['https://evil.example', 403],
    ['http://127.0.0.1.evil.example', 403],
    ['null', 403],
    [url, 200],
  ])('from a page of %s: %i', async (origin, status) => {
    expect((await send({ ...bearer(), origin })).status).toBe(status);
  });

  test('has no sessions and no streams, and one parameter', async () => {
    for (const method of ['GET', 'DELETE']) expect((await send(bearer(), { method })).status).toBe(405);
    expect((await send(bearer(), { path: `/mcp?project_id=${project}` })).status).toBe(200);
    expect((await send(bearer(), { path: '/mcp?project_id=x' })).status).toBe(422);
    expect((await send(bearer(), { path: '/mcp?other=1' })).status).toBe(422);
  });

  test('has the rate limit of its caller', async () => {
    const { key: other } = await newKey();
    const statuses = new Set<number>();
    for (let sent = 0; sent < 130; sent += 26) {
      const batch = Array.from({ length: 26 }, () => send({ authorization: `Bearer ${other}` }));
      for (const { status } of await Promise.all(batch)) statuses.add(status);
    }
    expect(statuses).toEqual(new Set([200, 429]));
  });
});
