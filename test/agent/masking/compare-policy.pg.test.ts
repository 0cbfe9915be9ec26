import { randomBytes, randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import type { MaskingRule } from '../../../shared/masking.ts';
import { constantFor } from '../../../shared/masking-names.ts';
import { eventually } from '../../support/eventually.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  asClient,
  type Branch,
  BUSY_WAIT_MS,
  connect,
  type Project,
  startHostWithProject,
} from '../../support/host/host-project.ts';

const MAIN = 'db_compared_prod';
const KEY = randomBytes(32).toString('base64');
const RULES: MaskingRule[] = [{ table: 'guest', column: 'email', with: 'email' }];

let servers: TestHost;
let project: Project;
let main: Branch;

beforeAll(async () => {
  ({ servers, project, main } = await startHostWithProject(
    MAIN,
    `create table guest (id int primary key, email text, "Phone" text, note text, seen inet not null, n int);
      insert into guest values (1, 'ada@example.com', '+44 20 7946 0958', 'write to b@c.example', '10.0.0.1', 1),
        (2, 'bob@example.com', null, 'or to d@e.example', '10.0.0.2', 2);
      create table host (id int primary key, name text, birth_date date); create table room (id int primary key, name text)`,
  ));
});
afterAll(() => servers?.stop());

const about = () => ({ branch_id: main.branch_id, database: main.database });
const in_ = async (branch: Branch, sql: string) => {
  const [row] = await asClient<Record<string, unknown>>(servers.host, 'direct', branch, 'owner', sql);
  return Object.values(row ?? {})[0];
};

test('main has suggestions with a reason and a function that fits', async () => {
  const suggestions = async (sample: boolean) => {
    const inspected = await runOperation(servers.host, 'masking.inspect', {
      ...about(),
      rules: RULES,
      unlisted: 'refuse_likely_personal',
      sample,
    });
    const ofGuest = <T extends { table: string }>(list: T[]) =>
      list.filter(({ table }) => table === 'public.guest');
    return { problems: ofGuest(inspected.problems), suggestions: ofGuest(inspected.suggestions) };
  };
  const { problems, suggestions: found } = await suggestions(true);
  expect(found).toEqual([
    ...[
      { column: 'Phone', type: 'text', reason: 'its name says phone number', with: 'phone' },
      { column: 'seen', type: 'inet', reason: 'its type is an address of a computer', with: 'constant' },
      { column: 'note', type: 'text', reason: 'its values look like e-mail addresses', with: 'email' },
    ].map((one) => ({ table: 'public.guest', ...one })),
  ]);
  expect(problems.map(({ column }) => column)).toEqual(['Phone', 'seen', 'note']);
  const types = ['inet', 'cidr', 'macaddr', 'macaddr8', 'jsonb', 'boolean', 'interval', 'text[]', 'text'];
  for (const type of types) await in_(main, `select '${constantFor(type)}'::${type}`);
  expect((await suggestions(false)).suggestions.map(({ column }) => column)).toEqual(['Phone', 'seen']);
});

test('main has a name of a person only where other columns of the table are personal', async () => {
  const { suggestions } = await runOperation(servers.host, 'masking.inspect', {
    ...about(),
    rules: [],
    unlisted: 'keep',
    sample: true,
  });
  const named = suggestions.filter(({ table }) => ['public.host', 'public.room'].includes(table));
  expect(named.map(({ table, column, with: how, reason }) => `${table}.${column} ${how}: ${reason}`)).toEqual(
    [
      'public.host.name name: other columns of the table are personal',
      'public.host.birth_date date_shift: its name says date of birth',
    ],
  );
});

test('main is compared again only after a change, also one that its session has not counted yet', async () => {
  const compare = async (rules = RULES) => {
    const compared = { ...about(), rules, unlisted: 'keep', sample: false };
    return (await runOperation(servers.host, 'masking.inspect', compared)).problems;
  };
  const limit = (connections: number) =>
    servers.query(`ALTER DATABASE ${MAIN} CONNECTION LIMIT ${connections}`);
  const [before] = await servers.query<{ datconnlimit: number }>(
    'SELECT datconnlimit FROM pg_database WHERE datname = $1',
    [MAIN],
  );
  // A worker of autovacuum can change the database meanwhile.
  await eventually(async () => {
    await limit(before?.datconnlimit ?? -1);
    await servers.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [MAIN]);
    expect(await compare()).toEqual([]);
    await limit(0);
    expect(await compare()).toEqual([]);
  });
  await expect(compare([])).rejects.toThrow('too many connections');
  await limit(before?.datconnlimit ?? -1);
  const client = await connect(servers.host, 'direct', main, 'owner');
  try {
    // The first statement is counted, and further ones only after a second.
    await client.query('select 1');
    await client.query('alter table guest rename email to mail');
    const gone = { table: 'public.guest', column: 'email', reason: 'there is no such column' };
    expect(await compare()).toEqual([gone]);
    await client.query('alter table guest rename mail to email');
  } finally {
    await client.end();
  }
  expect(await compare()).toEqual([]);
});

test('main is previewed before and after, not by the key of the project, and stays as it is', async () => {
  const rules: MaskingRule[] = [
    ...RULES,
    { table: 'guest', column: 'note', with: 'expression', args: { sql: "'note ' || id" } },
    { table: 'guest', column: 'n', with: 'email' },
  ];
  const preview = (table: string) =>
    runOperation(servers.host, 'masking.preview', { ...about(), rules, key: KEY, table, limit: 2 });
  const { columns, rows, problems } = await preview('guest');
  expect(columns.map((column) => column.with)).toEqual([null, 'email', null, 'expression', null, null]);
  expect(problems).toEqual([
    { table: 'public.guest', column: 'n', reason: 'email does not apply to integer' },
  ]);
  expect(rows.map(({ before }) => before)).toEqual([
    ['1', 'ada@example.com', '+44 20 7946 0958', 'write to b@c.example', '10.0.0.1/32', '1'],
    ['2', 'bob@example.com', null, 'or to d@e.example', '10.0.0.2/32', '2'],
  ]);
  const id = randomUUID();
  await runOperation(servers.host, 'snapshot.mask', {
    job_id: randomUUID(),
    project_id: project.id,
    branch_id: main.branch_id,
    source: main.database,
    snapshot_id: id,
    busy_wait: BUSY_WAIT_MS,
    masking: { rules: RULES, unlisted: 'keep', key: KEY },
    keep_tables: [],
    unless_same_as: null,
  });
  const branch = await project.create(`${MAIN}_br`, snapshotDatabaseName(id));
  const email = expect.stringMatching(/^[a-z]{20}@example\.com$/);
  const masked = await in_(branch, 'select email from guest where id = 1');
  expect(masked).toEqual(email);
  expect(rows[0]?.after[1]).not.toBe(masked);
  expect((await preview('guest')).rows).toEqual(rows);
  expect(rows.map(({ after }) => after)).toEqual([
    ['1', email, '+44 20 7946 0958', 'note 1', '10.0.0.1/32', '1'],
    ['2', email, null, 'note 2', '10.0.0.2/32', '2'],
  ]);
  expect(await in_(main, 'select email from guest where id = 1')).toBe('ada@example.com');
  expect(
    await in_(main, "select count(*)::int from pg_proc where pronamespace::regnamespace::text ~ '^pg_temp'"),
  ).toBe(0);
  await expect(preview('gone')).rejects.toMatchObject({ code: 'TABLE_NOT_FOUND' });
});
