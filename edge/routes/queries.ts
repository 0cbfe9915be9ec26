import { z } from 'zod';
import { QUERY_PARAMETERS_MAX } from '../../shared/limits.ts';
import { Scalar } from '../../shared/protocol/tables.ts';
import { ApiError } from '../errors.ts';
import { actorOf } from '../pipeline/context.ts';
import { alsoPermit, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { auditedWork } from './audited-work.ts';
import { BranchRefParams, branchOf, HOST_FAILURES } from './in-project.ts';

import { VALUES_EXPLAINED, Value } from './tables.ts';

/** Characters. The whole request has to fit into a message of the link. */
const SQL_LENGTH_MAX = 262_144;

const Query = z
  .strictObject({
    sql: z
      .string()
      .max(SQL_LENGTH_MAX)
      .meta({ description: 'One statement, with parameters `$1`, `$2`, ….' }),
    params: z.array(Scalar.nullable()).max(QUERY_PARAMETERS_MAX).default([]).meta({
      description: "Values of the parameters, in PostgreSQL's text format unless JSON has the type.",
    }),
    role: z.enum(['read_only', 'read_write']).default('read_only').meta({
      description:
        'The login of the branch that runs the statement. `read_write` takes the role and scope for changing rows, and is refused on `main` and on protected branches.',
    }),
  })
  .meta({ example: { sql: 'select id, title from book where id < $1', params: [8], role: 'read_only' } });

const QueryResult = z
  .strictObject({
    columns: z.array(z.strictObject({ name: z.string(), type: z.string() })),
    rows: z.array(z.array(Value)).meta({
      description: 'One array per row, because columns can have the same name.',
      example: [[7, 'Seven']],
    }),
    has_more: z.boolean().meta({ description: 'The statement returned more rows than fit into 1 MiB.' }),
    truncated: z
      .array(z.strictObject({ row: z.int(), column: z.int() }))
      .meta({ description: 'Cells whose value was cut, by their indexes.' }),
    command: z.string().nullable().meta({ description: 'The kind of statement.', example: 'SELECT' }),
    row_count: z.int().nullable().meta({
      description:
        'Rows that the statement returned or changed; null if it has no count, or was ended early.',
    }),
  })
  .meta({ id: 'QueryResult' });

const router = operations();

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'runQuery',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/query',
    summary: 'Run one SQL statement',
    description: `Runs in a transaction of its own, for at most 5 seconds. A text with several statements is refused. The audit log has the role, the kind of statement and its number of rows, or the error code; never its text.\n\n${VALUES_EXPLAINED} A cell over 64 KiB is cut.`,
    tags: ['Tables and rows'],
    request: { params: BranchRefParams, body: jsonBody(Query) },
    responses: { 200: response('The result of the statement.', QueryResult) },
    failures: [...HOST_FAILURES, 'WRITE_BLOCKED', 'BRANCH_PROTECTED'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { sql, params, role } = c.req.valid('json');
    const isChange = role === 'read_write';
    if (isChange) alsoPermit(c, 'rows.change');
    const { branch, database, call } = await branchOf(c, c.req.valid('param'), isChange ? 'change' : 'read');
    if (isChange && (branch.isDefault || branch.protected)) throw new ApiError('BRANCH_PROTECTED');
    const about = { projectId, branchId: database.branch_id, metadata: { role } };
    const { rows, ...result } = await auditedWork(
      databaseOf(c),
      actorOf(c),
      { ...about, name: 'query.executed', keptAfter: ['STATEMENT_REFUSED', 'TIME_LIMIT_REACHED'] },
      async () => {
        const done = await call('query.run', { ...database, role, sql, params });
        const { command, row_count } = done;
        return { result: done, metadata: { role, command, row_count } };
      },
    );
    const truncated: z.output<typeof QueryResult>['truncated'] = [];
    const values = rows.map((cells, row) =>
      cells.map((cell, column) => {
        if (typeof cell !== 'object' || cell === null) return cell;
        truncated.push({ row, column });
        return cell.cut;
      }),
    );
    return c.json({ ...result, rows: values, truncated }, 200);
  },
);

export const queryRoutes = router;
