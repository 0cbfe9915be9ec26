import { z } from 'zod';
import type { BranchRole } from '../../shared/branch/login.ts';
import { QUERY_PARAMETERS_MAX, QUERY_STATEMENTS_MAX } from '../../shared/limits.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { Scalar } from '../../shared/protocol/tables.ts';
import type { BranchRow } from '../database/schema.ts';
import { Value } from './row-values.ts';

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

export type HostResult = MethodResult<'query.run'>['results'][number];

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
