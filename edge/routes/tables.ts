import { z } from 'zod';
import { parseForeign, RefusedKey } from '../../shared/foreign-json.ts';
import { FILTERS_MAX, ORDERS_MAX, ROWS_MAX } from '../../shared/limits.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import {
  Column,
  type RowChange,
  RowFilter,
  type RowId,
  RowOrder,
  Scalar,
  Table,
  TableDetails,
} from '../../shared/protocol/tables.ts';
import { ApiError, settled } from '../errors.ts';
import { actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { auditedRowChange, auditedWork, short } from './audited-work.ts';
import { BranchRefParams, branchOf, callReading, HOST_FAILURES, TableParams } from './in-project.ts';
import { namedRow, RowsQuery, VALUES_EXPLAINED, Value, Values } from './row-values.ts';

const KeyNames = z.union([z.string(), z.array(z.string()).min(1).max(32)]).meta({
  description: 'The column or columns of the primary key, or one column that is unique and not null.',
});
const Id = z.union([Scalar, z.array(Scalar).min(1).max(32)]).meta({
  description: 'The key value of the row; for a composite key an array in the order of `primary_key`.',
});

const listed = <T>(value: T | T[]): T[] => (Array.isArray(value) ? value : [value]);

const tags = ['Tables and rows'];
const TABLES_PATH = '/api/v1/projects/{project_id}/branches/{branch_ref}/tables';
const ROWS_PATH = `${TABLES_PATH}/{table}/rows` as const;

/** Messages of the link that one list of tables may take; together they hold about 10,000 tables. */
const PARTS_MAX = 8;

const OneTable = Table.meta({ id: 'Table' });
const OneTableInDetail = TableDetails.meta({ id: 'TableDetails' });

/** A list in one parameter, as JSON. */
const jsonList = <T extends z.ZodType>(item: T, max: number) =>
  z
    .string()
    .max(16_384)
    .transform((text, context) => {
      try {
        return parseForeign(text);
      } catch (error) {
        const message = error instanceof RefusedKey ? error.message : 'Expected JSON';
        context.addIssue({ code: 'custom', message });
        return z.NEVER;
      }
    })
    .pipe(z.array(item).max(max));

const TablesQuery = z.strictObject({
  schema: z
    .string()
    .optional()
    .meta({ description: 'Only tables of this schema. Default: all schemas except system schemas.' }),
});
const PageQuery = RowsQuery.extend({
  limit: z.coerce
    .number()
    .int()
    .min(1)
    .max(ROWS_MAX)
    .default(ROWS_MAX)
    .meta({ description: 'Number of rows per page.' }),
  offset: z.coerce.number().int().min(0).default(0).meta({ description: 'Number of rows to skip.' }),
  filter: jsonList(RowFilter, FILTERS_MAX).default([]).meta({
    type: 'string',
    description:
      'Conditions that every row must meet, as a JSON array. Operators: `eq`, `ne`, `lt`, `le`, `gt`, `ge`, `contains` (in the text of the value, ignoring case), `is_null`, `is_not_null`; the last two take no `value`.',
    example: '[{"column":"title","operator":"contains","value":"e"}]',
  }),
  sort: jsonList(RowOrder, ORDERS_MAX).default([]).meta({
    type: 'string',
    description:
      'The order of the rows, as a JSON array. Rows that are equal in it are ordered by the primary key.',
    example: '[{"column":"title","direction":"desc"}]',
  }),
});

const RowPage = z
  .strictObject({
    table: z.string(),
    schema: z.string(),
    columns: z.array(Column),
    rows: z.array(Values).meta({ description: 'One object per row, with values by column name.' }),
    limit: z.int(),
    offset: z.int(),
    has_more: z.boolean().meta({ description: 'There are rows after this page.' }),
    estimated_rows: z
      .int()
      .nullable()
      .meta({ description: 'Estimate of all rows of the table; null when there is none.' }),
    truncated: z
      .array(z.strictObject({ row: z.int(), column: z.string() }))
      .meta({ description: 'Cells whose value was cut. `row` is an index in `rows`.' }),
  })
  .meta({ id: 'RowPage' });

const CellChange = z
  .strictObject({
    primary_key: KeyNames,
    id: Id,
    column: z.string(),
    value: Value,
    expected: Value.optional().meta({
      description:
        'The value that the cell must currently have; otherwise the request fails and changes nothing.',
    }),
  })
  .meta({ example: { primary_key: 'id', id: 7, column: 'title', value: 'New title' } });

const ChangedRow = z
  .strictObject({
    row: Values,
    truncated: z.array(z.string()).meta({ description: 'Columns whose value was cut.' }),
  })
  .meta({ id: 'ChangedRow' });

const RowDeletion = z
  .strictObject({ primary_key: KeyNames, ids: z.array(Id).min(1).max(ROWS_MAX) })
  .meta({ example: { primary_key: 'id', ids: [7, 8] } });

const DeletedRows = z
  .strictObject({
    deleted: z.int(),
    missing: z.array(Id).meta({ description: 'The entries of `ids` for which no row exists.' }),
  })
  .meta({ id: 'DeletedRows' });

/** The request of a route that is made as a `row.change`. */
interface RequestFields {
  /** Patterns of paths in the call, and the fields of the request in their place. */
  paths: readonly (readonly [RegExp, string])[];
  /** Whether the request is a list of changes too, so that its client knows their indexes. */
  hasChanges: boolean;
}

const CELL_CHANGE: RequestFields = {
  paths: [
    [/^changes\.0\.(values|expected)\.0\.column$/, 'column'],
    [/^changes\.0\.values\.0\.value$/, 'value'],
    [/^changes\.0\.expected\.0\.value$/, 'expected'],
    [/^changes\.0\./, ''],
  ],
  hasChanges: false,
};
const DELETION: RequestFields = {
  paths: [
    [/^changes\.\d+\.primary_key$/, 'primary_key'],
    [/^changes\.(\d+)\.id$/, 'ids.$1'],
  ],
  hasChanges: false,
};
const CHANGES: RequestFields = {
  // Both lists are objects in the request, by column.
  paths: [[/^(changes\.\d+\.(?:values|expected))\..*$/, '$1']],
  hasChanges: true,
};

/** The result of a call. @throws ApiError with the fields of the request in place of those of the call */
async function ofRequest<T>({ paths, hasChanges }: RequestFields, called: Promise<T>): Promise<T> {
  const outcome = await settled(called);
  if (outcome.ok) return outcome.value;
  const { fields, ...failure } = outcome.failure;
  if (!fields) throw ApiError.of(failure);
  const { change, details, ...others } = fields;
  const named = (path: string) => paths.reduce((text, [from, to]) => text.replace(from, to), path);
  throw ApiError.of({
    ...failure,
    fields: {
      ...others,
      ...(hasChanges && change !== undefined && { change }),
      ...(Array.isArray(details) && {
        details: details.map((detail) => ({ ...detail, path: named(detail.path) })),
      }),
    },
  });
}

type Result = MethodResult<'row.change'>;

const namedOutcome = (
  { tables }: Result,
  { table: at, row }: Result['outcomes'][number],
): { row: z.output<typeof Values> | null; truncated: string[] } =>
  row === null ? { row, truncated: [] } : namedRow(tables[at]?.columns ?? [], row);

/** How a change of one cell that met another row than expected is reported. */
const CELL_CONFLICTS = { missing: 'ROW_NOT_FOUND', changed: 'ROW_CHANGED' } as const;

/** An id may be given twice, and as a number or a text. */
const idText = (id: RowId) => JSON.stringify(id.map(String));

const deletedIds = (ids: readonly RowId[], { outcomes }: Result): Set<string> =>
  new Set(outcomes.filter(({ skipped }) => !skipped).map(({ change }) => idText(ids[change] ?? [])));

const router = operations();

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'listTables',
    method: 'get',
    path: TABLES_PATH,
    summary: 'List tables and views, ordered by schema and name',
    tags,
    request: { params: BranchRefParams, query: TablesQuery },
    responses: {
      200: response(
        'The tables and views that the read-write login of the branch can read.',
        z.strictObject({ tables: z.array(OneTable) }),
      ),
    },
    failures: HOST_FAILURES,
  }),
  async (c) => {
    const { schema = null } = c.req.valid('query');
    const { database, call } = await branchOf(c, c.req.valid('param'), 'read');
    const tables: z.output<typeof Table>[] = [];
    for (let part = 0; part < PARTS_MAX; part += 1) {
      const last = tables.at(-1);
      const after = last ? { schema: last.schema, name: last.name } : null;
      const listing = await call('table.list', { ...database, schema, after });
      tables.push(...listing.tables);
      if (!listing.has_more) return c.json({ tables }, 200);
    }
    const message = 'There are too many tables for one answer: name a schema';
    throw new ApiError('VALIDATION_FAILED', { details: [{ path: 'schema', message }] });
  },
);

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'describeTable',
    method: 'get',
    path: `${TABLES_PATH}/{table}` as const,
    summary: 'Describe a table or view',
    description:
      'Columns with defaults, identities, generated values and enum values, the lists of columns that identify a row, foreign keys, indexes and constraints. Rows of a table without `keys` cannot be changed.',
    tags,
    request: { params: TableParams, query: RowsQuery },
    responses: { 200: response('The description of the table.', OneTableInDetail) },
    failures: HOST_FAILURES,
  }),
  async (c) => {
    const { table } = c.req.valid('param');
    const { schema } = c.req.valid('query');
    const { database, call } = await branchOf(c, c.req.valid('param'), 'read');
    return c.json(await call('table.describe', { ...database, schema, table }), 200);
  },
);

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'listRows',
    method: 'get',
    path: ROWS_PATH,
    summary: 'List rows, by default ordered by primary key',
    description: `${VALUES_EXPLAINED}\n\nA cell over 64 KiB is cut and listed in \`truncated\`; shorter cells are also cut when the page would exceed 1 MiB. The order of the rows is undefined if the table has no primary key.`,
    tags,
    request: { params: TableParams, query: PageQuery },
    responses: { 200: response('A page of rows.', RowPage) },
    failures: HOST_FAILURES,
  }),
  async (c) => {
    const { table } = c.req.valid('param');
    const { schema, limit, offset, filter, sort: order } = c.req.valid('query');
    const rows: z.output<typeof Values>[] = [];
    const truncated: z.output<typeof RowPage>['truncated'] = [];
    const next = (database: { branch_id: string; database: string }) => ({
      ...database,
      schema,
      table,
      filter,
      order,
      offset: offset + rows.length,
      limit: limit - rows.length,
    });
    const { result, database, call } = await callReading(c, c.req.valid('param'), 'row.list', next);
    // Rows with very many columns come in several messages.
    for (let page = result; ; page = await call('row.list', next(database))) {
      const names = page.columns.map(({ name }) => name);
      for (const cells of page.rows) {
        const named = namedRow(names, cells);
        truncated.push(...named.truncated.map((column) => ({ row: rows.length, column })));
        rows.push(named.row);
      }
      if (page.has_more && page.rows.length > 0 && rows.length < limit) continue;
      const { columns, has_more, estimated_rows } = page;
      return c.json(
        { table, schema, columns, rows, limit, offset, has_more, estimated_rows, truncated },
        200,
      );
    }
  },
);

router.openapi(
  operation({
    access: 'rows.change',
    operationId: 'updateRow',
    method: 'patch',
    path: ROWS_PATH,
    summary: 'Change one cell',
    description: VALUES_EXPLAINED,
    tags,
    request: { params: TableParams, query: RowsQuery, body: jsonBody(CellChange) },
    responses: { 200: response('The updated row.', ChangedRow) },
    failures: [...HOST_FAILURES, 'WRITE_BLOCKED', 'ROW_NOT_FOUND', 'ROW_CHANGED'],
  }),
  async (c) => {
    const { project_id, table } = c.req.valid('param');
    const { schema } = c.req.valid('query');
    const { primary_key, id, column, value, expected } = c.req.valid('json');
    const { database, call } = await branchOf(c, c.req.valid('param'), 'change');
    const key = { primary_key: listed(primary_key), id: listed(id) };
    const change = {
      projectId: project_id,
      branchId: database.branch_id,
      schema,
      table,
      column,
      ids: [key.id],
    };
    const { row, truncated } = await auditedRowChange(
      databaseOf(c),
      actorOf(c),
      { ...change, name: 'row.changed', primaryKey: key.primary_key },
      async () => {
        const wanted = expected === undefined ? [] : [{ column, value: expected }];
        const update = { schema, table, ...key, values: [{ column, value }], expected: wanted };
        const changes: RowChange[] = [{ action: 'update', ...update }];
        const made = await ofRequest(CELL_CHANGE, call('row.change', { ...database, changes }));
        const [outcome] = made.outcomes;
        if (!outcome) throw new Error('a change without an outcome');
        if (outcome.conflict) throw new ApiError(CELL_CONFLICTS[outcome.conflict]);
        return { result: namedOutcome(made, outcome), changed: [key.id] };
      },
    );
    return c.json({ row: row ?? {}, truncated }, 200);
  },
);

router.openapi(
  operation({
    access: 'rows.change',
    operationId: 'deleteRows',
    method: 'delete',
    path: ROWS_PATH,
    summary: 'Delete rows',
    description: 'Deletes all given rows in one transaction.',
    tags,
    request: { params: TableParams, query: RowsQuery, body: jsonBody(RowDeletion) },
    responses: { 200: response('The number of deleted rows.', DeletedRows) },
    failures: [...HOST_FAILURES, 'WRITE_BLOCKED'],
  }),
  async (c) => {
    const { project_id, table } = c.req.valid('param');
    const { schema } = c.req.valid('query');
    const { primary_key, ids } = c.req.valid('json');
    const { database, call } = await branchOf(c, c.req.valid('param'), 'change');
    const key = { primary_key: listed(primary_key), ids: ids.map((id): RowId => listed(id)) };
    const change = { projectId: project_id, branchId: database.branch_id, schema, table, ids: key.ids };
    const deleted = await auditedRowChange(
      databaseOf(c),
      actorOf(c),
      { ...change, name: 'row.deleted', primaryKey: key.primary_key },
      async () => {
        const changes = key.ids.map((id): RowChange => {
          const row = { schema, table, primary_key: key.primary_key, id };
          return { action: 'delete', ...row, expected: [], must_exist: false };
        });
        const made = await ofRequest(DELETION, call('row.change', { ...database, changes }));
        const result = deletedIds(key.ids, made);
        return { result, changed: key.ids.filter((id) => result.has(idText(id))) };
      },
    );
    return c.json(
      { deleted: deleted.size, missing: ids.filter((_, at) => !deleted.has(idText(key.ids[at] ?? []))) },
      200,
    );
  },
);

const schema = z.string().default('public').meta({ description: 'The schema of the table.' });
const table = z.string().meta({ example: 'book' });
const expected = Values.default({}).meta({
  description: 'Values that the row must currently have; otherwise nothing is changed.',
});
const ofRow = { schema, table, primary_key: KeyNames, id: Id };

const Change = z
  .discriminatedUnion('action', [
    z.strictObject({
      action: z.literal('insert'),
      schema,
      table,
      values: Values.meta({ description: 'Columns that are left out get their default.' }),
    }),
    z.strictObject({
      action: z.literal('update'),
      ...ofRow,
      values: Values.refine((values) => Object.keys(values).length > 0, 'Expected at least one column'),
      expected,
    }),
    z.strictObject({ action: z.literal('delete'), ...ofRow, expected }),
  ])
  .meta({ id: 'RowChange' });

const Changes = z.strictObject({ changes: z.array(Change).min(1).max(ROWS_MAX) }).meta({
  example: {
    changes: [
      { action: 'insert', table: 'book', values: { id: 9, title: 'Nine' } },
      {
        action: 'update',
        table: 'book',
        primary_key: 'id',
        id: 7,
        values: { title: 'New title' },
        expected: { title: 'Seven' },
      },
    ],
  },
});

const ChangedRows = z
  .strictObject({
    changes: z.array(
      z.strictObject({
        row: Values.nullable().meta({ description: 'The row after the change; null if it was deleted.' }),
        truncated: z.array(z.string()).meta({ description: 'Columns whose value was cut.' }),
      }),
    ),
  })
  .meta({ id: 'ChangedRows' });

const pairs = (values: Record<string, Scalar | null>) =>
  Object.entries(values).map(([column, value]) => ({ column, value }));

/** The change as it is sent over the link, where a column can have any name. */
function wireChange(change: z.output<typeof Change>): RowChange {
  if (change.action === 'insert') return { ...change, values: pairs(change.values) };
  const key = {
    primary_key: listed(change.primary_key),
    id: listed(change.id),
    expected: pairs(change.expected),
  };
  return change.action === 'delete'
    ? { ...change, ...key, must_exist: true }
    : { ...change, ...key, values: pairs(change.values) };
}

/** Columns that an audit event names at most, for each change. */
const AUDITED_COLUMNS_MAX = 50;

/** What the audit log says of a change: the names and the key, never a value. */
function auditedChange(change: RowChange, inserted: { key: string[]; id: RowId } | null) {
  const columns = change.action === 'delete' ? [] : change.values.slice(0, AUDITED_COLUMNS_MAX);
  const key = change.action === 'insert' ? inserted : { key: change.primary_key, id: change.id };
  return {
    action: change.action,
    schema: short(change.schema),
    table: short(change.table),
    ...(columns.length > 0 && { columns: columns.map(({ column }) => short(column)) }),
    ...(key && key.id.length > 0 && { primary_key: key.key.map(short), id: key.id.map(short) }),
  };
}

/** The key of an inserted row, unless it was cut. */
function insertedKey({ tables }: Result, { table: at, row }: Result['outcomes'][number]) {
  const { columns = [], key = [] } = tables[at] ?? {};
  const id = key.map((name) => row?.[columns.indexOf(name)]);
  const isWhole = id.every((value) => value !== null && value !== undefined && typeof value !== 'object');
  return isWhole ? { key, id: id as RowId } : null;
}

const conflictsOf = (result: Result) =>
  result.outcomes.flatMap((outcome) =>
    outcome.conflict === null
      ? []
      : [{ change: outcome.change, reason: outcome.conflict, ...namedOutcome(result, outcome) }],
  );

router.openapi(
  operation({
    access: 'rows.change',
    operationId: 'changeRows',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/row-changes',
    summary: 'Insert, update and delete rows in one transaction',
    description: `Makes all changes in their order, or none. If rows have other values than \`expected\`, or do not exist, the failure lists each of them with its present values.\n\n${VALUES_EXPLAINED}`,
    tags: ['Tables and rows'],
    request: { params: BranchRefParams, body: jsonBody(Changes) },
    responses: { 200: response('One entry per change.', ChangedRows) },
    failures: [...HOST_FAILURES, 'WRITE_BLOCKED', 'CHANGES_CONFLICT'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { changes: wanted } = c.req.valid('json');
    const changes = wanted.map(wireChange);
    const { database, call } = await branchOf(c, c.req.valid('param'), 'change');
    const work = {
      name: 'rows.changed' as const,
      projectId,
      branchId: database.branch_id,
      metadata: { changes: changes.map((change) => auditedChange(change, null)) },
    };
    const result = await auditedWork(databaseOf(c), actorOf(c), work, async () => {
      const made = await ofRequest(CHANGES, call('row.change', { ...database, changes }));
      const conflicts = conflictsOf(made);
      if (conflicts.length > 0) throw new ApiError('CHANGES_CONFLICT', { conflicts });
      if (!changes.some(({ action }) => action === 'insert'))
        return { result: made, metadata: work.metadata };
      const audited = made.outcomes.map((outcome) =>
        auditedChange(changes[outcome.change] as RowChange, insertedKey(made, outcome)),
      );
      return { result: made, metadata: { changes: audited } };
    });
    return c.json({ changes: result.outcomes.map((outcome) => namedOutcome(result, outcome)) }, 200);
  },
);

export const tableRoutes = router;
