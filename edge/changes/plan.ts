import type { Failure } from '../../shared/failures.ts';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { ChangePlan } from '../database/column-types.ts';
import type { BranchRow } from '../database/schema.ts';

/** Calls the host of the project for a client. @throws ApiError */
type Call = <M extends Method>(method: M, params: Params<M>) => Promise<MethodResult<M>>;

const WITHIN_MS = 25_000;

const invalid = (path: string, message: string): Failure => ({
  code: 'VALIDATION_FAILED',
  fields: { details: [{ path, message }] },
});

/** Origin of a plan: a branch, the statements of a migration, or both. */
export interface PlanSource {
  /** The schema that `main` is to have, and the rows that a migration tool has written there. */
  branch: BranchRow | null;
  /** Null: those of the schema difference. */
  sql: string | null;
}

/**
 * The plan of a change as `main` is now.
 * @returns or TIME_LIMIT_REACHED, VALIDATION_FAILED for a branch that differs in nothing
 */
export async function planChange(
  call: Call,
  projectId: string,
  main: BranchRow,
  { branch, sql: given }: PlanSource,
): Promise<Result<ChangePlan, Failure>> {
  const onHost = ({ id, databaseName }: BranchRow) => ({ branch_id: id, database: databaseName });
  const difference =
    branch && given === null ? await differenceOf(call, projectId, onHost(branch), onHost(main)) : null;
  if (difference && !difference.ok) return difference;
  const { statements = [], not_modelled: notModelled = [] } = difference?.value ?? {};
  if (difference && statements.length === 0)
    return fail(
      invalid(
        'from',
        notModelled.length === 0
          ? 'The branch has the schema of main, so there is nothing to change.'
          : `No statement expresses what differs. Send the statements as sql. ${notModelled[0]}`,
      ),
    );
  const sql = given ?? statements.map((statement) => `${statement};`).join('\n');
  const {
    steps,
    schema,
    main_changes: mainChanges,
  } = await call('change.plan', {
    project_id: projectId,
    ...onHost(main),
    sql,
    branch: branch?.databaseName ?? null,
  });
  const base = mainChanges ? 'kept' : 'gone';
  return ok({
    steps,
    schema,
    notModelled,
    base: branch ? base : null,
    mainChanges: mainChanges ?? [],
  });
}

async function differenceOf(
  call: Call,
  projectId: string,
  branch: { branch_id: string; database: string },
  against: { branch_id: string; database: string },
): Promise<Result<NonNullable<MethodResult<'branch.diff'>['schema']>, Failure>> {
  const options = { job_id: null, rows: false, schema: true, within: WITHIN_MS };
  const { schema } = await call('branch.diff', { project_id: projectId, ...branch, against, ...options });
  return schema ? ok(schema) : fail({ code: 'TIME_LIMIT_REACHED' });
}
