import { expect, test } from 'vitest';
import { Dispatcher } from '../../../agent/link/dispatch.ts';
import { HostError } from '../../../agent/process/host-error.ts';
import { BOUNDS } from '../../../shared/protocol/bounds.ts';
import { ERROR_MESSAGE_LENGTH, ReplyFrame, RPC_ERRORS } from '../../../shared/protocol/frames.ts';

const ids = { job_id: crypto.randomUUID(), project_id: crypto.randomUUID() };
const dropped = { dropped_databases: 1 };

/** A dispatcher whose operations the test ends. */
function scripted() {
  const runs: { method: string; params: unknown; end: PromiseWithResolvers<unknown> }[] = [];
  const logged: unknown[] = [];
  const dispatcher = new Dispatcher({
    handle: (method, params) => {
      const end = Promise.withResolvers<unknown>();
      runs.push({ method, params, end });
      return end.promise;
    },
    log: (event, fields) => logged.push({ event, ...fields }),
    bounds: BOUNDS,
  });
  const call = (method: string, params: Record<string, unknown>, traceparent?: string) =>
    dispatcher.dispatch({ jsonrpc: '2.0', id: crypto.randomUUID(), method, params, traceparent });
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  return { runs, logged, call, settle };
}

test.each(['host.explode', 'constructor', '__proto__', ''])('%s is not a method', async (method) => {
  const { call, runs } = scripted();
  expect(await call(method, {})).toMatchObject({
    error: { code: RPC_ERRORS.methodNotFound, data: { code: 'INVALID_CALL' } },
  });
  expect(runs).toEqual([]);
});

test('invalid parameters are named, and their values are not in the reply', async () => {
  const { call } = scripted();
  const reply = await call('branch.prove', {
    ...ids,
    branches: [{ branch_id: 'x', database: 'postgres', build_id: ids.job_id, password: 's3cret' }],
  });
  expect(reply).toMatchObject({
    error: {
      code: RPC_ERRORS.invalidParams,
      message: 'invalid parameters: branches.0.branch_id, branches.0.database, branches.0.password',
      data: { code: 'INVALID_CALL' },
    },
  });
});

test.each<[string, unknown, string, string]>([
  ['a HostError', new HostError('HOST_FULL', 'the disk is full'), 'HOST_FULL', 'the disk is full'],
  [
    'an error of PostgreSQL',
    Object.assign(new Error('password authentication failed for s3cret'), { code: '28P01' }),
    'INTERNAL',
    "project.drop failed; the reason is in the agent's log",
  ],
  ['a string', 's3cret', 'INTERNAL', "project.drop failed; the reason is in the agent's log"],
  [
    'another object with the code of a failure',
    { code: 'HOST_FULL', message: 's3cret' },
    'INTERNAL',
    "project.drop failed; the reason is in the agent's log",
  ],
])('%s thrown by an operation', async (_name, thrown, code, message) => {
  const { call, runs, settle } = scripted();
  const reply = call('project.drop', ids);
  await settle();
  runs[0]?.end.reject(thrown);
  expect(await reply).toMatchObject({ error: { message, data: { code } } });
});

test('calls about rows run concurrently, each with its own result', async () => {
  const { call, runs, settle } = scripted();
  const page = { branch_id: crypto.randomUUID(), database: 'db_shop_prod', schema: 'public', table: 'book' };
  const params = { ...page, limit: 1, offset: 0, filter: [], order: [] };
  const replies = [
    call('row.list', params),
    call('row.list', params),
    call('row.list', { ...params, offset: 1 }),
  ];
  await settle();
  expect(runs).toHaveLength(3);
  const result = { columns: [], rows: [], has_more: false, estimated_rows: null };
  for (const [index, { end }] of runs.entries()) end.resolve({ ...result, estimated_rows: index });
  expect(await Promise.all(replies)).toMatchObject(
    [0, 1, 2].map((estimated_rows) => ({ result: { estimated_rows } })),
  );
});

test('the path of an invalid parameter is part of the reply', async () => {
  const { call, runs, settle } = scripted();
  const reply = call('project.drop', ids);
  await settle();
  runs[0]?.end.reject(new HostError('INVALID_CALL', 'no value', { path: 'filter.0.value' }));
  const frame = await reply;
  expect(frame).toMatchObject({ error: { data: { path: 'filter.0.value' } } });
  expect(ReplyFrame.parse(frame)).toEqual(frame);
});

test("PostgreSQL's error code is part of the reply", async () => {
  const { call, runs, settle } = scripted();
  const reply = call('project.drop', ids);
  await settle();
  runs[0]?.end.reject(new HostError('STATEMENT_REFUSED', 'duplicate key', { sqlstate: '23505' }));
  const frame = await reply;
  expect(frame).toMatchObject({ error: { data: { code: 'STATEMENT_REFUSED', sqlstate: '23505' } } });
  expect(ReplyFrame.parse(frame)).toEqual(frame);
});

test('a long message is cut to the length that the edge accepts', async () => {
  const { call, runs, settle } = scripted();
  const reply = call('project.drop', ids);
  await settle();
  runs[0]?.end.reject(new HostError('HOST_FULL', 'x'.repeat(ERROR_MESSAGE_LENGTH + 1)));
  expect(ReplyFrame.safeParse(await reply).success).toBe(true);
});

test('an invalid result is logged and not sent', async () => {
  const { call, runs, settle, logged } = scripted();
  const reply = call('project.drop', ids);
  await settle();
  runs[0]?.end.resolve({ dropped_databases: 'all' });
  expect(await reply).toMatchObject({ error: { data: { code: 'INTERNAL' } } });
  expect(logged[0]).toMatchObject({ event: 'operation.failed', method: 'project.drop' });
});

test('a call that is repeated during its run joins it', async () => {
  const { call, runs, settle } = scripted();
  const replies = [call('project.drop', ids), call('project.drop', { ...ids })];
  await settle();
  expect(runs).toHaveLength(1);
  runs[0]?.end.resolve(dropped);
  expect(await Promise.all(replies)).toMatchObject([{ result: dropped }, { result: dropped }]);
  call('project.drop', ids);
  await settle();
  expect(runs).toHaveLength(2);
});

test('a different call about the same subject waits until the run ends, even if that fails', async () => {
  const { call, runs, settle } = scripted();
  const rules = (revision: number) => ({ project_id: ids.project_id, access: { revision, rules: [] } });
  const first = call('access.apply', rules(1));
  const second = call('access.apply', rules(2));
  const other = call('access.apply', { ...rules(1), project_id: crypto.randomUUID() });
  await settle();
  expect(runs).toHaveLength(2);
  runs[0]?.end.reject(new HostError('RULES_NOT_APPLIED', 'still uses the old file'));
  expect(await first).toMatchObject({ error: { data: { code: 'RULES_NOT_APPLIED' } } });
  await settle();
  expect(runs).toHaveLength(3);
  runs[1]?.end.resolve({ revision: 1 });
  runs[2]?.end.resolve({ revision: 2 });
  expect(await second).toMatchObject({ result: { revision: 2 } });
  expect(await other).toMatchObject({ result: { revision: 1 } });
});

test('calls of one job for other branches run side by side, and a repeated one joins its own', async () => {
  const { call, runs, settle } = scripted();
  const part = (branch_id: string) => ({
    ...ids,
    branches: [{ branch_id, database: 'db_shop_prod_br_one', build_id: branch_id }],
  });
  const one = crypto.randomUUID();
  const other = crypto.randomUUID();
  const calls = [one, other, one].map((id) => call('branch.finalize', part(id)));
  await settle();
  expect(runs.map(({ params }) => params)).toMatchObject([part(one), part(other)]);
  for (const { end } of runs) end.resolve({});
  for (const reply of await Promise.all(calls)) expect(reply).toMatchObject({ result: {} });
});

test('calls over the bound are refused', async () => {
  const { call, runs, settle } = scripted();
  const calls = Array.from({ length: BOUNDS.callsInFlight }, () => call('project.drop', ids));
  expect(await call('project.drop', ids)).toMatchObject({ error: { data: { code: 'HOST_BUSY' } } });
  // Those of SQL over HTTP are counted apart.
  const part = { reply_id: crypto.randomUUID(), offset: 0 };
  const parts = Array.from({ length: BOUNDS.callsInFlight }, () => call('sql.read', part));
  expect(await call('sql.read', part)).toMatchObject({ error: { data: { code: 'HOST_BUSY' } } });
  await settle();
  for (const { method, end } of runs) end.resolve(method === 'sql.read' ? { text: 'x', bytes: 1 } : dropped);
  await Promise.all([...calls, ...parts]);
  call('host.describe', {});
  await settle();
  expect(runs).toHaveLength(parts.length + 2);
});

test('the end of an operation is logged with its outcome and the trace of its request', async () => {
  const { call, runs, settle, logged } = scripted();
  const trace = '4bf92f3577b34da6a3ce929d0e0e4736';
  const dropping = call('project.drop', ids, `00-${trace}-00f067aa0ba902b7-01`);
  const sizing = call('project.size', { project_id: ids.project_id });
  await settle();
  const run = (method: string) => runs.find((each) => each.method === method)?.end;
  run('project.drop')?.reject(new HostError('HOST_FULL', 'the disk is full'));
  run('project.size')?.resolve({ project_id: ids.project_id, sizes: {} });
  await Promise.all([dropping, sizing]);
  // A quick read is not logged.
  expect(logged).toEqual([
    {
      event: 'operation.ended',
      method: 'project.drop',
      outcome: 'HOST_FULL',
      duration_ms: expect.any(Number),
      trace_id: trace,
    },
  ]);
});
