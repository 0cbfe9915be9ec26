import { z } from 'zod';
import { BRANCH_ROLES, type BranchRole } from '../../shared/branch/login.ts';
import { NOT_EMPTY } from '../../shared/protocol/row-operations.ts';
import { ApiError, found, settled, unwrap } from '../errors.ts';
import { ACTION_OF_ROLE } from '../permissions.ts';
import { actorOf } from '../pipeline/context.ts';
import { alsoPermit, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { auditedWork } from './audited-work.ts';
import { BranchRefParams, branchOf, HOST_FAILURES, requireFullData } from './in-project.ts';
import { VALUES_EXPLAINED } from './row-values.ts';
import { adviceOf, type HostResult, SCRIPT, StatementResult, toResult } from './statements.ts';

const Query = z
  .strictObject({
    ...SCRIPT,
    role: z.enum(BRANCH_ROLES).default('read_only').meta({
      description:
        'The login of the branch that runs the statements. `read_write` takes the role and scope for changing rows. `owner` can change the schema, and takes the role and scope for reading credentials. Both are refused on `main` and on protected branches, except that a person may run statements as the `owner` of a `main` that has no objects yet.',
    }),
  })
  .meta({ example: { sql: 'select id, title from book where id < $1', params: [8], role: 'read_only' } });

const QueryResult = StatementResult.extend({
  results: z.array(StatementResult).optional().meta({
    description:
      'Of a text with several statements: the result of each, in their order. The other fields are those of the last one.',
  }),
}).meta({ id: 'QueryResult' });

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
