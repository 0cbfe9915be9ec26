import { and, eq } from 'drizzle-orm';
import { z } from 'zod';
import { ROWS_MAX } from '../../shared/limits.ts';
import {
  DIFFERENCE_METHODS,
  RowDifference,
  SchemaDifference,
} from '../../shared/protocol/difference-operations.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { type Cell, Column } from '../../shared/protocol/tables.ts';
import { checkPastTime, PastTime } from '../branches/branch-request.ts';
import {
  isComparison,
  type OtherSide,
  onHost,
  openComparison,
  otherSide,
  otherSideQueries,
  referenceOf,
} from '../branches/comparison.ts';
import { ofEarlier } from '../branches/prepared-source.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import type { Comparison } from '../database/column-types.ts';
import { differences } from '../database/history-schema.ts';
import { type BranchRow, jobs } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { Job, toJobResponse } from '../jobs/job-resource.ts';
import { CANCELLED, publicFailure } from '../jobs/saga.ts';
import { repeatIfLost } from '../lost-object.ts';
import { currentVersion } from '../masking/policy.ts';
import { missing } from '../missing.ts';
import { type AppContext, actorOf } from '../pipeline/context.ts';
import { operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf, primaryOf } from '../pipeline/replica-choice.ts';
import { PENDING } from './creations.ts';
import { BranchRefParams, Flag, HOST_FAILURES, inBranch, requireData, usableBranch } from './in-project.ts';
import { namedRow, RowsQuery, VALUES_EXPLAINED, Values } from './row-values.ts';

const Method = z.enum(DIFFERENCE_METHODS).meta({
  description:
    'How the rows that can differ were found. `wal_summary`: the blocks that were written since the two separated. `extents`: the blocks that no longer share their place on the disk. `full`: all rows were compared.',
});

const AgainstField = z
  .strictObject({
    kind: z.enum(['branch', 'snapshot']),
    id: z.uuid(),
    name: z.string().nullable().meta({ example: 'main' }),
  })
  .meta({ id: 'DifferenceAgainst' });

/** The differences of a branch, seen from the other side. */
const Difference = z
  .strictObject({
    against: AgainstField,
    method: Method.nullable(),
    rows: RowDifference.nullable().meta({ description: 'Null if `rows` is false.' }),
    schema: SchemaDifference.nullable().meta({ description: 'Null unless `schema` is true.' }),
  })
  .meta({ id: 'Difference' });

const ChangedRows = z
  .strictObject({
    against: AgainstField,
    method: Method,
    schema: z.string(),
    table: z.string(),
    primary_key: z.array(z.string()).meta({ description: 'The columns by which rows are matched.' }),
    columns: z.strictObject({ before: z.array(Column), after: z.array(Column) }),
    rows: z.array(
      z.strictObject({
        change: z.enum(['inserted', 'updated', 'deleted']),
        before: Values.nullable().meta({ description: 'Null for an inserted row.' }),
        after: Values.nullable().meta({ description: 'Null for a deleted row.' }),
      }),
    ),
    truncated: z
      .array(z.strictObject({ row: z.int(), side: z.enum(['before', 'after']), column: z.string() }))
      .meta({ description: 'Cells whose value was cut. `row` is an index in `rows`.' }),
    next_cursor: z.string().nullable(),
  })
  .meta({ id: 'RowDifferencePage' });

/** A preview of a reset to an earlier time. */
const ResetPreview = Difference.omit({ against: true })
  .extend({ at: z.string().meta({ example: '2026-11-23T10:15:00.000000Z' }) })
  .meta({ id: 'ResetPreview' });

const toAgainst = ({ branch, snapshot }: OtherSide): z.output<typeof AgainstField> =>
  branch
    ? { kind: 'branch', id: branch.id, name: branch.branchName }
    : { kind: 'snapshot', id: snapshot.id, name: snapshot.name };

const toDifference = (
  other: OtherSide,
  { method, rows, schema }: MethodResult<'branch.diff'>,
): z.output<typeof Difference> => ({ against: toAgainst(other), method, rows, schema });

const CHANGES = { 'false,true': 'inserted', 'true,true': 'updated', 'true,false': 'deleted' } as const;

/** The rows of a page for clients, and their cells whose value was cut. */
function namedChanges({ columns_before, columns_after, rows }: MethodResult<'row.diff'>) {
  const truncated: z.output<typeof ChangedRows>['truncated'] = [];
  const names = { before: columns_before, after: columns_after };
  const sideOf = (row: number, side: 'before' | 'after', cells: Cell[] | null) => {
    if (!cells) return null;
    const named = namedRow(
      names[side].map(({ name }) => name),
      cells,
    );
    truncated.push(...named.truncated.map((column) => ({ row, side, column })));
    return named.row;
  };
  const named = rows.map(({ before, after }, row) => ({
    change: CHANGES[`${before !== null},${after !== null}` as keyof typeof CHANGES],
    before: sideOf(row, 'before', before),
    after: sideOf(row, 'after', after),
  }));
  return { rows: named, truncated };
}

const tags = ['Differences'];

/** A comparison that takes longer becomes a job. */
const WAIT_MS = 10_000;

const Against = z.string().min(1).max(100).default('parent').meta({
  description:
    '`parent`: the branch that this one was cloned from; or the id or name of a branch of the project, or the id of a snapshot.',
});

const DiffQuery = z.strictObject({
  against: Against,
  rows: Flag(true).meta({ description: 'Count the rows of each table that differ.' }),
  schema: Flag(false).meta({ description: 'Compare the schemas.' }),
  job_id: z.uuid().toLowerCase().optional().meta({
    description: 'The job of an earlier response 202 to the same request, whose result is returned.',
  }),
});

/** Opaque to clients: the key of the last row of a page. */
const Cursor = z
  .string()
  .max(100_000)
  .transform((text, context) => {
    try {
      return z
        .array(z.string())
        .min(1)
        .max(32)
        .parse(JSON.parse(decodeURIComponent(atob(text))));
    } catch {
      context.addIssue({ code: 'custom', message: 'Invalid cursor: use next_cursor of this list.' });
      return z.NEVER;
    }
  })
  .meta({ description: 'The `next_cursor` of the previous page; omit it for the first page.' });

const RowsOfTableQuery = RowsQuery.extend({
  against: Against,
  table: z.string().meta({ description: 'The name of the table, without its schema.' }),
  limit: z.coerce
    .number()
    .int()
    .min(1)
    .max(ROWS_MAX)
    .default(ROWS_MAX)
    .meta({ description: 'Number of rows per page.' }),
  cursor: Cursor.optional(),
});

const PreviewQuery = DiffQuery.omit({ against: true }).extend({ at: PastTime });

const FAILURES = [...HOST_FAILURES, 'PROJECT_NOT_ACTIVE', 'SOURCE_NOT_ACTIVE'] as const;

/** Both sides, read in one trip, with a function that calls their host. @throws ApiError */
async function bothSides(c: AppContext, params: { project_id: string; branch_ref: string }, against: string) {
  const [project, branch, branches, snapshots] = await inBranch(c, params, (db) =>
    otherSideQueries(db, params, against, c.var.principal),
  );
  const other = unwrap(otherSide(branch, against, branches, snapshots));
  requireData(c, project, other.branch ?? other.snapshot);
  return { ...usableBranch(c, project, branch, 'read'), other };
}

const router = operations();

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'diffBranch',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/diff',
    summary: 'Compare a branch with its parent, another branch or a snapshot',
    description:
      'Counts the rows of each table that only the branch has (`inserted`), that only the other side has (`deleted`), and that differ (`updated`). Its cost follows the number of changes, not the size of the tables. A comparison that takes longer than 10 seconds becomes a job: repeat the request with its id as `job_id`.',
    tags,
    request: { params: BranchRefParams, query: DiffQuery },
    responses: { 200: response('The differences.', Difference), 202: PENDING },
    failures: FAILURES,
  }),
  async (c) => {
    const params = c.req.valid('param');
    const { against, rows, schema, job_id: jobId } = c.req.valid('query');
    const { project, branch, other, database, call } = await bothSides(c, params, against);
    const comparison: Comparison = { against: referenceOf(other), rows, schema };
    if (jobId !== undefined) {
      const done = await resultOf(c, branch, comparison, jobId);
      return 'job' in done
        ? c.json(toJobResponse(done.job), 202)
        : c.json(toDifference(other, done.result), 200);
    }
    const sides = { project_id: project.id, ...database, against: onHost(other), job_id: null };
    const result = await call('branch.diff', { ...sides, rows, schema, within: WAIT_MS }).catch(
      async (error) => {
        // The job of an earlier request may be the one that is under way.
        if (!(error instanceof ApiError) || error.failure.code !== 'PROJECT_BUSY') throw error;
        const open = await openComparison(primaryOf(c), branch, comparison);
        if (!open) throw error;
        return { job: open };
      },
    );
    if ('job' in result) return c.json(toJobResponse(result.job), 202);
    if (result.complete) return c.json(toDifference(other, result), 200);
    const about = { branch, comparison, hostId: project.hostId, actor: actorOf(c) };
    const job = await repeatIfLost(() =>
      coordinatorOf(c.env, project.id).compareBranch({ jobId: crypto.randomUUID(), ...about }),
    );
    return c.json(toJobResponse(unwrap(job)), 202);
  },
);

router.openapi(
  operation({
    access: 'branch.change',
    gives: 'record',
    operationId: 'previewReset',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/reset/preview',
    summary: 'Show what a reset to an earlier time would change',
    description:
      'Recovers what the branch held at the time, compares the branch with it, and drops it. `inserted` rows would be lost, `deleted` rows would come back, and `updated` rows would get their former values. It takes as long as the recovery, so it is a job: repeat the request with its id as `job_id`. `DELETE …/diff` cancels it.',
    tags,
    request: { params: BranchRefParams, query: PreviewQuery },
    responses: { 200: response('What would change.', ResetPreview), 202: PENDING },
    failures: [
      ...FAILURES,
      'PROJECT_MOVING',
      'MASKING_INCOMPLETE',
      'TIME_NOT_RECOVERABLE',
      'SOURCE_UNSUITABLE',
    ],
  }),
  async (c) => {
    const params = c.req.valid('param');
    const { at, rows, schema, job_id: known } = c.req.valid('query');
    const [project, branch, [policy]] = await inBranch(c, params, (db) => [
      currentVersion(db, params.project_id),
    ]);
    const comparison: Comparison = { against: { at }, rows, schema };
    const jobId = crypto.randomUUID();
    const source = unwrap(ofEarlier(branch, at, policy?.version, jobId));
    requireData(c, project, source.content);
    if (known !== undefined) {
      const done = await resultOf(c, branch, comparison, known);
      if ('job' in done) return c.json(toJobResponse(done.job), 202);
      const { method, rows, schema } = done.result;
      return c.json({ at, method, rows, schema }, 200);
    }
    usableBranch(c, project, branch, 'read');
    unwrap(checkPastTime(at, project, branch, new Date()));
    const about = { branch, comparison, source, hostId: project.hostId, actor: actorOf(c) };
    const job = await repeatIfLost(() => coordinatorOf(c.env, project.id).compareBranch({ jobId, ...about }));
    return c.json(toJobResponse(unwrap(job)), 202);
  },
);

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'cancelDiff',
    method: 'delete',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/diff',
    summary: 'Cancel the comparison of a branch',
    description:
      'For a comparison that has become a job. Its host stops reading, and the next comparison of the project can begin. The job ends as `failed` with `JOB_CANCELLED`. 404: none of this branch is under way.',
    tags,
    request: { params: BranchRefParams },
    responses: { 202: response('The job of the comparison.', Job) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const [, branch] = await inBranch(c, c.req.valid('param'), () => []);
    const cancellation = { projectId, kind: 'branch.diff', branchId: branch.id, actor: actorOf(c) } as const;
    const cancelled = await repeatIfLost(() => coordinatorOf(c.env, projectId).cancelJob(cancellation));
    return c.json(toJobResponse(unwrap(cancelled)), 202);
  },
);

/**
 * The result of a comparison that was a job, or the job while it is open. Only the same comparison by a
 * caller with both sides in reach finds it.
 * @throws ApiError NOT_FOUND, and the failure of the job
 */
async function resultOf(
  c: AppContext,
  { id: branchId }: BranchRow,
  comparison: Comparison,
  jobId: string,
): Promise<{ result: MethodResult<'branch.diff'> } | { job: typeof jobs.$inferSelect }> {
  const rows = await databaseOf(c)
    .select({ job: jobs, result: differences.result })
    .from(jobs)
    .leftJoin(differences, eq(differences.jobId, jobs.id))
    .where(and(eq(jobs.id, jobId), isComparison(branchId, comparison)));
  const { job, result } = found(rows, missing('comparison'));
  if (job.error?.code === CANCELLED) throw ApiError.of(missing('comparison'));
  if (job.status === 'failed' && job.error) throw ApiError.of(publicFailure(job.error));
  if (job.status !== 'succeeded') return { job };
  return { result: found(result ? [result] : [], missing('comparison')) };
}

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'listChangedRows',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/diff/rows',
    summary: 'List the rows of a table that differ, before and after',
    description: `Rows are matched by the primary key of the table, or by a column that is unique and not null. Each page compares again. ${VALUES_EXPLAINED}`,
    tags,
    request: { params: BranchRefParams, query: RowsOfTableQuery },
    responses: { 200: response('A page of rows.', ChangedRows) },
    failures: FAILURES,
  }),
  async (c) => {
    const params = c.req.valid('param');
    const { against, schema, table, limit, cursor = null } = c.req.valid('query');
    const { project, other, database, call } = await bothSides(c, params, against);
    const sides = { project_id: project.id, ...database, against: onHost(other) };
    const page = await call('row.diff', { ...sides, schema, table, limit, after: cursor });
    const { method, key, columns_before, columns_after, next } = page;
    const columns = { before: columns_before, after: columns_after };
    const header = { against: toAgainst(other), method, schema, table, primary_key: key, columns };
    const next_cursor = next && btoa(encodeURIComponent(JSON.stringify(next)));
    return c.json({ ...header, ...namedChanges(page), next_cursor }, 200);
  },
);

export const differenceRoutes = router;
