import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import {
  notificationFromPreviousVersion,
  resultFromPreviousVersion,
  resultOfPreviousFailure,
  toPreviousVersion,
} from '../../../edge/host-link/previous-version.ts';
import { NOTIFICATIONS } from '../../../shared/protocol/notifications.ts';
import { type Method, OPERATIONS, type Params } from '../../../shared/protocol/operations.ts';
import { PREVIOUS_VERSION } from '../../../shared/protocol/version.ts';

interface Released {
  version: number;
  operations: Record<string, { params: object; result: object }>;
  notifications: Record<string, { params: object }>;
}

/** The schemas of the last release, as `dev/link-schemas.ts` printed them there. */
const RELEASED: Released = JSON.parse(
  readFileSync(
    join(import.meta.dirname, `../../shared/protocol/released/version-${PREVIOUS_VERSION}.json`),
    'utf8',
  ),
);

const ajv = new Ajv2020({ strictSchema: false });
addFormats.default(ajv);

const operationOf = (method: string) => {
  const found = RELEASED.operations[method];
  if (!found) throw new Error(`version ${PREVIOUS_VERSION} has no ${method}`);
  return found;
};
const isValid = (schema: object, value: unknown) => ajv.validate(schema, value);

const id = crypto.randomUUID();
const identity = { job_id: id, project_id: id, branch_id: id, database: 'db_shop_prod' };
const created = (member: object) => ({
  job_id: id,
  project_id: id,
  branches: [{ branch_id: id, database: 'db_shop_prod', build_id: id, ...member }],
});
const database = { branch_id: id, database: 'db_shop_prod' };
const table = { ...database, schema: 'public', table: 'book' };
const row = (n: number) => ({ schema: 'public', table: 'book', primary_key: ['id'], id: [n] });
const cell = (value: number) => ({ column: 'id', value });
const verifier = 'SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy';
const verifiers = { owner: verifier, read_write: verifier, read_only: verifier };
const access = {
  revision: 3,
  tenant: 'acme',
  rules: [{ branch_id: null, cidr: '192.0.2.0/24' }],
  sql_rules: [{ branch_id: null, cidr: '198.51.100.0/24' }],
  write_blocked: true,
  closed: [id],
  connection_attempts: { [id]: 200 },
  settings: { [id]: { search_path: 'app' } },
  spares: { of_project: null, of_snapshots: {} },
  durability: 'async' as const,
  verifiers: { [id]: { owner: verifier } },
};
const cloned = { created: true, strategy: 'reflink', clone_ms: 1.5, paused_ms: 0, source_bytes: 1 };
const column = { name: 'id', type: 'integer', nullable: false, is_primary_key: true };

/**
 * Of each operation that both versions have: parameters in the present form, and a result in the older one.
 */
const CALLS: { [M in Method]?: { params: Params<M>; result: object } } = {
  'host.describe': {
    params: {},
    result: {
      agent_version: '0.1.0',
      postgres_version: '18.4',
      pooler_version: '1.18.0',
      clone_method: 'reflink',
      warnings: [],
    },
  },
  'host.inventory': {
    params: {},
    result: {
      system_identifier: '7',
      branches: [{ project_id: id, branch_id: id, database: 'db_shop_prod', state: 'ready' }],
      projects: [{ project_id: id, access_revision: 2 }],
    },
  },
  'branch.prepare': { params: { ...created({ verifiers }), access } as Params<'branch.prepare'>, result: {} },
  'branch.clone': { params: { ...created({}), source: 'db_shop_prod', busy_wait: 1000 }, result: cloned },
  'branch.finalize': { params: created({}), result: {} },
  'branch.prove': {
    params: created({ password: 'x'.repeat(32) }) as Params<'branch.prove'>,
    result: { login_ms: 3 },
  },
  'branch.drop': { params: { ...identity, made_by: null }, result: { dropped: true } },
  'project.drop': { params: { job_id: id, project_id: id }, result: { dropped_databases: 2 } },
  'access.apply': { params: { project_id: id, access }, result: { revision: 3 } },
  'table.list': {
    params: { branch_id: id, database: 'db_shop_prod', schema: null, after: null },
    result: { tables: [], has_more: false },
  },
  'row.list': {
    params: { ...table, limit: 10, offset: 0, filter: [], order: [] },
    result: { columns: [column], rows: [[1]], has_more: false, estimated_rows: null },
  },
  'row.change': {
    params: {
      ...database,
      changes: [{ action: 'update', ...row(1), values: [cell(2)], expected: [cell(1)] }],
    },
    result: { columns: [column], row: [2] },
  },
};

const deletion = (n: number) => ({
  action: 'delete' as const,
  ...row(n),
  expected: [],
  must_exist: false,
});
/** The second older operation of a present one. */
const DELETION: { params: Params<'row.change'>; result: object } = {
  params: { ...database, changes: [deletion(1), deletion(2)] },
  result: { deleted: 1, missing: [1] },
};
const UPDATE = { action: 'update', ...row(1), values: [cell(2)], expected: [] };
const changes = (...list: object[]) => ({ ...database, changes: list });
type Translated = [Method, { params: Params<Method>; result: object }];
const TRANSLATED = [...Object.entries(CALLS), ['row.change', DELETION]] as Translated[];

test('the kept schemas are those of the previous version', () => {
  expect(RELEASED.version).toBe(PREVIOUS_VERSION);
});

describe('operations', () => {
  test.each(TRANSLATED)('%s is translated both ways', (method, call) => {
    const params = OPERATIONS[method].params.parse(call.params) as Params<Method>;
    const older = toPreviousVersion(method, params);
    if (!older) throw new Error(`${method} has no translation`);
    const released = operationOf(older.method);
    expect(isValid(released.params, older.params), ajv.errorsText()).toBe(true);
    expect(isValid(released.result, call.result), ajv.errorsText()).toBe(true);
    const result = resultFromPreviousVersion(method, call.result as Record<string, unknown>, params);
    expect(OPERATIONS[method].result.safeParse(result).error).toBeUndefined();
  });

  test('every operation of the previous version is in use', () => {
    const used = TRANSLATED.map(([method, { params }]) => toPreviousVersion(method, params)?.method);
    expect(used.sort()).toEqual(Object.keys(RELEASED.operations).sort());
  });

  test('no other operation is called on its agent', () => {
    const others = (Object.keys(OPERATIONS) as Method[]).filter((method) => !(method in CALLS));
    expect(others).toContain('branch.keep');
    const called = others.filter((method) => toPreviousVersion(method, {} as Params<Method>) !== null);
    expect(called).toEqual([]);
  });

  test('a change of a cell and a deletion have the outcomes of the older result', () => {
    const { params, result } = CALLS['row.change'] as typeof DELETION;
    const of = (call: typeof DELETION) =>
      resultFromPreviousVersion('row.change', call.result as Record<string, unknown>, call.params);
    const none = { table: 0, row: null, conflict: null, skipped: false };
    expect(of({ params, result })).toEqual({
      tables: [{ columns: ['id'], key: ['id'] }],
      outcomes: [{ ...none, change: 0, row: [2] }],
    });
    expect(of(DELETION)).toMatchObject({
      outcomes: [
        { ...none, change: 0 },
        { ...none, change: 1, skipped: true },
      ],
    });
    const missing = resultOfPreviousFailure('row.change', { code: 'ROW_NOT_FOUND' });
    expect(OPERATIONS['row.change'].result.parse(missing).outcomes).toMatchObject([{ conflict: 'missing' }]);
    const changed = resultOfPreviousFailure('row.change', { code: 'ROW_CHANGED' });
    expect(changed?.outcomes).toMatchObject([{ conflict: 'changed' }]);
    expect(resultOfPreviousFailure('row.change', { code: 'STATEMENT_REFUSED' })).toBeNull();
    expect(resultOfPreviousFailure('row.list', { code: 'ROW_CHANGED' })).toBeNull();
  });

  /** A present schema that changes has to be compared with the older one again. */
  test('parameters that are sent unchanged have the same schema in both versions', () => {
    const changed = (Object.keys(CALLS) as Method[]).filter((method) => {
      const older = toPreviousVersion(method, (CALLS[method] as { params: Params<Method> }).params);
      const { $schema: _, ...present } = z.toJSONSchema(OPERATIONS[method].params, { io: 'input' });
      return JSON.stringify(present) !== JSON.stringify(operationOf(older?.method ?? '').params);
    });
    expect(changed.sort()).toEqual([
      'access.apply',
      'branch.clone',
      'branch.drop',
      'branch.finalize',
      'branch.prepare',
      'branch.prove',
      'project.drop',
      'row.change',
      'row.list',
    ]);
  });

  test.each<[string, Method, object]>([
    [
      'a snapshot as the source',
      'branch.clone',
      { ...created({}), source: `bgsnap_${'0'.repeat(32)}`, busy_wait: 1 },
    ],
    [
      'a batch',
      'branch.finalize',
      { ...created({}), branches: [created({}).branches, created({}).branches].flat() },
    ],
    [
      'more than 100 closed branches',
      'access.apply',
      { project_id: id, access: { ...access, closed: Array(101).fill(id) } },
    ],
    [
      'a filter',
      'row.list',
      { ...table, limit: 1, offset: 0, filter: [{ column: 'id', operator: 'is_null' }], order: [] },
    ],
    [
      'an order',
      'row.list',
      { ...table, limit: 1, offset: 0, filter: [], order: [{ column: 'id', direction: 'asc' }] },
    ],
    ['a new row', 'row.change', changes({ action: 'insert', schema: 'public', table: 'book', values: [] })],
    ['changes of two rows', 'row.change', changes(UPDATE, { ...UPDATE, id: [2] })],
    ['a change of two cells', 'row.change', changes({ ...UPDATE, values: [cell(2), cell(3)] })],
    [
      'another expected column',
      'row.change',
      changes({ ...UPDATE, expected: [{ column: 'title', value: 'One' }] }),
    ],
    ['a deletion that needs its row', 'row.change', changes({ ...deletion(1), must_exist: true })],
    ['a deletion that expects a value', 'row.change', changes({ ...deletion(1), expected: [cell(1)] })],
    ['deletions from two tables', 'row.change', changes(deletion(1), { ...deletion(1), table: 'author' })],
    ['a deletion with a change', 'row.change', changes(deletion(1), UPDATE)],
  ])('%s needs the present version', (_, method, params) => {
    expect(OPERATIONS[method].params.safeParse(params).success).toBe(true);
    expect(toPreviousVersion(method, params as Params<Method>)).toBeNull();
  });
});

test('a measurement is read in the present form', () => {
  const measured = {
    project_id: id,
    observed_at: new Date(0).toISOString(),
    branches: [
      {
        branch_id: id,
        database_size_bytes: 1,
        cache_hit_ratio: null,
        cpu_seconds: 1,
        active_connections: 1,
        total_connections: 1,
        transactions_committed: 1,
        transactions_rolled_back: 1,
        rows_fetched: 1,
        rows_inserted: 1,
        rows_updated: 1,
        rows_deleted: 1,
      },
    ],
  };
  expect(isValid(RELEASED.notifications.measurement?.params ?? {}, measured), ajv.errorsText()).toBe(true);
  expect(NOTIFICATIONS.measurement.params.safeParse(measured).success).toBe(false);
  const present = notificationFromPreviousVersion('measurement', measured);
  expect(NOTIFICATIONS.measurement.params.safeParse(present).error).toBeUndefined();
});
