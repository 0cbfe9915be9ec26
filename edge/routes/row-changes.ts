import { z } from 'zod';
import { ROWS_MAX } from '../../shared/limits.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import type { RowChange, RowId, Scalar } from '../../shared/protocol/tables.ts';
import { auditedWork, short } from '../audit/audited-work.ts';
import { ApiError } from '../errors.ts';
import { actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { branchOf, HOST_FAILURES } from './branch-database.ts';
import { BranchRefParams, Confirm } from './parameters.ts';
import { Id, KeyNames, listed, namedRow, VALUES_EXPLAINED, Values } from './row-fields.ts';

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

const Changes = z.strictObject({ changes: z.array(Change).min(1).max(ROWS_MAX), confirm: Confirm }).meta({
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
    ? { ...change, ...key }
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

type Result = MethodResult<'row.change'>;

/** The key of an inserted row, unless it was cut. */
function insertedKey({ tables }: Result, { table: at, row }: Result['outcomes'][number]) {
  const { columns = [], key = [] } = tables[at] ?? {};
  const id = key.map((name) => row?.[columns.indexOf(name)]);
  const isWhole = id.every((value) => value !== null && value !== undefined && typeof value !== 'object');
  return isWhole ? { key, id: id as RowId } : null;
}

const namedOutcome = (
  { tables }: Result,
  { table: at, row }: Result['outcomes'][number],
): { row: z.output<typeof Values> | null; truncated: string[] } =>
  row === null ? { row, truncated: [] } : namedRow(tables[at]?.columns ?? [], row);

const conflictsOf = (result: Result) =>
  result.outcomes.flatMap((outcome) =>
    outcome.conflict === null
      ? []
      : [{ change: outcome.change, reason: outcome.conflict, ...namedOutcome(result, outcome) }],
  );

const router = operations();

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
    failures: [...HOST_FAILURES, 'WRITE_BLOCKED', 'BRANCH_PROTECTED', 'CHANGES_CONFLICT'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { changes: wanted, confirm } = c.req.valid('json');
    const changes = wanted.map(wireChange);
    const { database, call } = await branchOf(c, c.req.valid('param'), 'change', confirm);
    const work = {
      name: 'rows.changed' as const,
      projectId,
      branchId: database.branch_id,
      metadata: { changes: changes.map((change) => auditedChange(change, null)) },
    };
    const result = await auditedWork(databaseOf(c), actorOf(c), work, async () => {
      const made = await call('row.change', { ...database, changes });
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

export const rowChangeRoutes = router;
