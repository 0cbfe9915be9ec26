import { z } from 'zod';
import { BRANCH_ROLES, type BranchRole } from '../../shared/branch/login.ts';
import { QUERY_PARAMETERS_MAX, QUERY_STATEMENTS_MAX } from '../../shared/limits.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { NOT_EMPTY } from '../../shared/protocol/row-operations.ts';
import { Scalar } from '../../shared/protocol/tables.ts';
import type { BranchRow } from '../database/schema.ts';
import { ApiError, found, settled, unwrap } from '../errors.ts';
import type { Action } from '../permissions.ts';
import { actorOf } from '../pipeline/context.ts';
import { alsoPermit, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { auditedWork } from './audited-work.ts';
import { BranchRefParams, branchOf, HOST_FAILURES, requireFullData } from './in-project.ts';
import { VALUES_EXPLAINED, Value } from './tables.ts';

/** Characters. The whole request has to fit into a message of the link. */
const SQL_LENGTH_MAX = 262_144;

/** What a client runs. */
export const SCRIPT = {
  sql: z
    .string()
    .max(SQL_LENGTH_MAX)
    .meta({
      description: `One statement, with parameters \`$1\`, \`$2\`, …, or up to ${QUERY_STATEMENTS_MAX} without parameters, separated by semicolons.`,
    }),
  params: z.array(Scalar.nullable()).max(QUERY_PARAMETERS_MAX).default([]).meta({
    description: "Values of the parameters, in PostgreSQL's text format unless JSON has the type.",
  }),
};

const Query = z
  .strictObject({
    ...SCRIPT,
    role: z.enum(BRANCH_ROLES).default('read_only').meta({
      description:
        'The login of the branch that runs the statements. `read_write` takes the role and scope for changing rows. `owner` can change the schema, and takes the role and scope for reading credentials. Both are refused on `main` and on protected branches, except that a person may run statements as the `owner` of a `main` that has no objects yet.',
    }),
  })
  .meta({ example: { sql: 'select id, title from book where id < $1', params: [8], role: 'read_only' } });

/** The result of one statement. */
export const StatementResult = z
  .strictObject({
    columns: z.array(z.strictObject({ name: z.string(), type: z.string() })),
    rows: z.array(z.array(Value)).meta({
      description: 'One array per row, because columns can have the same name.',
      example: [[7, 'Seven']],
    }),
    has_more: z.boolean().meta({
      description: 'The statement returned more rows than fit into 1 MiB, or into its part of it.',
    }),
    truncated: z
      .array(z.strictObject({ row: z.int(), column: z.int() }))
      .meta({ description: 'Cells whose value was cut, by their indexes.' }),
    command: z.string().nullable().meta({ description: 'The kind of statement.', example: 'SELECT' }),
    row_count: z.int().nullable().meta({
      description:
        'Rows that the statement returned or changed; null if it has no count, or was ended early.',
    }),
  })
  .meta({ id: 'StatementResult' });

const QueryResult = StatementResult.extend({
  results: z.array(StatementResult).optional().meta({
    description:
      'Of a text with several statements: the result of each, in their order. The other fields are those of the last one.',
  }),
}).meta({ id: 'QueryResult' });

/** What else a login takes than reading rows. */
export const ACTION_OF_ROLE: Record<BranchRole, Action | null> = {
  read_only: null,
  read_write: 'rows.change',
  owner: 'credentials.read',
};

/** SQLSTATE `read_only_sql_transaction` and `insufficient_privilege`. */
const READ_ONLY = '25006';
const NO_RIGHT = '42501';
/** How PostgreSQL names commands that only the owner of the objects can run. */
const OF_OWNER =
  /^(?:cannot execute (?:CREATE|ALTER|DROP|COMMENT|GRANT|REVOKE|REINDEX|CLUSTER|REASSIGN|SECURITY|REFRESH)\b|must be owner\b|permission denied (?:for schema|to create)\b)/;

/** What to do about a statement that its login must not run. */
export function adviceOf(
  role: BranchRole,
  { isDefault, protected: isProtected }: Pick<BranchRow, 'isDefault' | 'protected'>,
  { sqlstate, message }: Record<string, unknown>,
) {
  const isOfOwner = OF_OWNER.test(String(message));
  const isRefused = sqlstate === READ_ONLY || (sqlstate === NO_RIGHT && (role === 'read_only' || isOfOwner));
  if (!isRefused || role === 'owner') return {};
  if (isDefault || isProtected) {
    const name = isDefault ? 'main' : 'a protected branch';
    return {
      hint: `Queries do not change ${name}. Try it on a copy, or use its connection URL or a branch of it.`,
    };
  }
  const required_role: BranchRole = isOfOwner ? 'owner' : 'read_write';
  return { required_role, hint: `Run it with the role ${required_role}.` };
}

type HostResult = MethodResult<'query.run'>['results'][number];

export function toResult({ rows, ...result }: HostResult): z.output<typeof StatementResult> {
  const truncated: z.output<typeof StatementResult>['truncated'] = [];
  const values = rows.map((cells, row) =>
    cells.map((cell, column) => {
      if (typeof cell !== 'object' || cell === null) return cell;
      truncated.push({ row, column });
      return cell.cut;
    }),
  );
  return { ...result, rows: values, truncated };
}

/** The audit log has the kinds of so many statements. */
const AUDITED_MAX = 20;

function auditOf(role: BranchRole, results: readonly HostResult[]) {
  const { command, row_count } = found(results.slice(-1));
  const several = {
    statements: results.length,
    commands: results.slice(0, AUDITED_MAX).map((result) => result.command),
  };
  return { role, command, row_count, ...(results.length > 1 && several) };
}

const router = operations();

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'runQuery',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/query',
    summary: 'Run SQL statements',
    description: `Runs all statements in one transaction: for at most 5 seconds as \`read_only\`, for at most 30 seconds as another role. If one fails, nothing is changed, and \`statement\` says which it was. \`BEGIN\` before the first and \`COMMIT\` or \`ROLLBACK\` after the last statement are accepted. The audit log has the role, the kinds of statements and the number of rows, or the error code; never their text.\n\n${VALUES_EXPLAINED} A cell over 64 KiB is cut.`,
    tags: ['Tables and rows'],
    request: { params: BranchRefParams, body: jsonBody(Query) },
    responses: { 200: response('The result of the statement, or of each statement.', QueryResult) },
    failures: [...HOST_FAILURES, 'WRITE_BLOCKED', 'BRANCH_PROTECTED'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { sql, params, role } = c.req.valid('json');
    const action = ACTION_OF_ROLE[role];
    if (action) alsoPermit(c, action);
    const { project, branch, database, call } = await branchOf(
      c,
      c.req.valid('param'),
      action ? 'change' : 'read',
    );
    const isGuarded = action !== null && (branch.isDefault || branch.protected);
    // The first tables of a project need no other program. A machine has one.
    const isFirst = isGuarded && branch.isDefault && role === 'owner' && !c.var.principal.machine;
    if (isFirst) requireFullData(c, project);
    else if (isGuarded) throw new ApiError('BRANCH_PROTECTED');
    const about = { projectId, branchId: database.branch_id, metadata: { role } };
    const done = await settled(
      auditedWork(
        databaseOf(c),
        actorOf(c),
        { ...about, name: 'query.executed', keptAfter: ['STATEMENT_REFUSED', 'TIME_LIMIT_REACHED'] },
        async () => {
          const { results } = await call('query.run', {
            ...database,
            project_id: projectId,
            role,
            sql,
            params,
            ...(isFirst && { only_if_empty: true }),
          });
          return { result: results, metadata: auditOf(role, results) };
        },
      ),
    );
    if (!done.ok && done.failure.code === 'STATEMENT_REFUSED') {
      const { fields = {}, ...failure } = done.failure;
      if (isFirst && fields.sqlstate === NOT_EMPTY) throw new ApiError('BRANCH_PROTECTED');
      throw ApiError.of({ ...failure, fields: { ...fields, ...adviceOf(role, branch, fields) } });
    }
    const results = unwrap(done).map(toResult);
    return c.json({ ...found(results.slice(-1)), ...(results.length > 1 && { results }) }, 200);
  },
);

export const queryRoutes = router;
