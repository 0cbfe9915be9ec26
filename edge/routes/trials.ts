import { and, eq, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import { BRANCH_ROLES } from '../../shared/branch/login.ts';
import { BRANCH_DATA } from '../../shared/masking.ts';
import { ACCESS_OF_STATE } from '../../shared/project/storage-quota.ts';
import { TrialReport } from '../../shared/protocol/trial-operations.ts';
import { isUnmasked } from '../branches/branch.ts';
import { clonedBranch, knownBranchesOf, referencedBranchId } from '../branches/branch-reference.ts';
import { BUSY_WAIT_MS } from '../branches/clone-source.ts';
import { readyMasked, TRIAL_WAIT_MS, triedSource } from '../branches/trial.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import type { Tried } from '../database/column-types.ts';
import { isProjectMoving } from '../database/conditions.ts';
import { jobs } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import { toJobResponse } from '../jobs/job-resource.ts';
import { publicFailure } from '../jobs/saga.ts';
import { repeatIfLost } from '../lost-object.ts';
import { missing } from '../missing.ts';
import { ACTION_OF_ROLE, allow, seesFullData } from '../permissions.ts';
import { actorOf } from '../pipeline/context.ts';
import { alsoPermit, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { auditedWork } from './audited-work.ts';
import { PENDING } from './creations.ts';
import { BranchRefParams, HOST_FAILURES, inProject, requireData, usableBranch } from './in-project.ts';
import { DEFAULT_LIMITS } from './rehearsals.ts';
import { VALUES_EXPLAINED } from './row-values.ts';
import { adviceOf, SCRIPT, StatementResult, toResult } from './statements.ts';

const tags = ['Rehearsals'];

const Trial = z
  .strictObject({
    ...SCRIPT,
    role: z.enum(BRANCH_ROLES).optional().meta({
      description:
        'The login of the copy that runs the statements. `read_write` takes the role and scope for changing rows. `owner` can change the schema, and takes the role and scope for reading credentials. Default: `read_write` for a caller who may change rows, otherwise `read_only`.',
    }),
  })
  .meta({ example: { sql: 'update book set title = upper(title)' } });

const REPORT = TrialReport.shape;

const Report = z
  .strictObject({
    verdict: z.enum(['safe', 'danger', 'failed']).meta({
      description: '`failed`: a statement was refused, or took too long. `danger`: `dangers` has some.',
    }),
    outcome: REPORT.outcome.meta({
      description:
        '`failed`: PostgreSQL refused a statement. `timed_out`: the statements took longer than 30 seconds, or 5 as `read_only`. Neither changes a row.',
    }),
    error: z
      .strictObject({
        message: z.string(),
        sqlstate: z.string().nullable(),
        statement: z.int().nullable().meta({ description: 'Number of the statement, of several.' }),
        required_role: z.enum(BRANCH_ROLES).optional(),
        hint: z.string().optional(),
      })
      .nullable(),
    role: z.enum(BRANCH_ROLES),
    source: z
      .strictObject({
        kind: z.enum(['branch', 'snapshot']),
        id: z.uuid(),
        name: z.string().nullable().meta({ example: 'main' }),
        data: z.enum(BRANCH_DATA),
        taken_at: z.iso.datetime().nullable(),
      })
      .meta({
        description:
          'What was copied: the branch, or its masked snapshot for a caller who gets masked data only.',
      }),
    results: z.array(StatementResult).meta({ description: 'One for each statement, unless one failed.' }),
    rows: REPORT.rows.meta({ description: 'Rows that differ from before, by table. Null: see `problems`.' }),
    schema: REPORT.schema.meta({ description: 'What differs in the schema. Null: see `problems`.' }),
    tables: REPORT.tables.meta({
      description:
        'Tables that the statements locked against writers, wrote again or dropped. A lock is held until the end of the statements.',
    }),
    dangers: REPORT.dangers.meta({
      description:
        'As of a rehearsal: long locks on large tables, rewritten tables, and tables that lost rows.',
    }),
    unwatched_tables: REPORT.unwatched_tables,
    problems: REPORT.problems.meta({ description: 'Why a part of the report is missing.' }),
    has_more: REPORT.has_more.meta({ description: 'A list was cut to the 512 KiB of a report.' }),
    statements_ms: REPORT.statements_ms.meta({ description: 'Milliseconds that the statements took.' }),
    total_ms: REPORT.total_ms.meta({
      description: 'Milliseconds with the copy and the comparison.',
    }),
  })
  .meta({ id: 'Trial' });

/** Where no branch is refused for its name: a copy is neither `main` nor protected. */
const COPY = { isDefault: false, protected: false };

function toReport(
  { limits: _, error, results, ...report }: TrialReport,
  tried: Tried,
): z.input<typeof Report> {
  const { role, source } = tried;
  const isDanger = report.dangers.length > 0;
  return {
    verdict: report.outcome !== 'succeeded' ? 'failed' : isDanger ? 'danger' : 'safe',
    ...report,
    error: error && {
      message: error.message,
      sqlstate: error.sqlstate,
      statement: error.statement === null ? null : error.statement + 1,
      ...adviceOf(role, COPY, error),
    },
    role,
    source,
    results: results.map(toResult),
  };
}

const router = operations();

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'tryStatements',
    method: 'post',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/try',
    summary: 'Try SQL statements on a copy of a branch',
    description: `Copies the branch, also \`main\` and a protected one, runs all statements in one transaction as a login of the copy, compares the copy with its state before, and drops it. Nobody else sees the copy, and the branch is not changed. A project has two trials at a time. A trial that takes longer than 25 seconds becomes a job: \`GET …/try/{job_id}\` has its report for an hour. The audit log has the role and the outcome; never the text.\n\n${VALUES_EXPLAINED}`,
    tags,
    request: { params: BranchRefParams, body: jsonBody(Trial) },
    responses: { 200: response('What the statements did.', Report), 202: PENDING },
    failures: [
      ...HOST_FAILURES,
      'WRITE_BLOCKED',
      'SOURCE_BUSY',
      'SOURCE_NOT_ACTIVE',
      'PROJECT_MOVING',
      'COLLATION_OUTDATED',
    ],
  }),
  async (c) => {
    const params = c.req.valid('param');
    const { project_id: projectId, branch_ref: reference } = params;
    const { sql, params: values, role: wanted } = c.req.valid('json');
    const { principal } = c.var;
    const role = wanted ?? (allow(principal, 'rows.change').ok ? 'read_write' : 'read_only');
    const action = ACTION_OF_ROLE[role];
    if (action) alsoPermit(c, action);
    const id = referencedBranchId(projectId, reference, principal, knownBranchesOf);
    const [project, branches, [masked]] = await inProject(c, projectId, (db) => [
      clonedBranch(db, projectId, reference, principal),
      readyMasked(db, projectId, id),
    ]);
    const branch = found(branches, missing('branch', reference));
    const isMasked = project.maskedOnly && isUnmasked(branch) && !seesFullData(principal);
    if (isMasked && !masked) requireData(c, project, branch);
    // Nobody writes to the branch itself: a copy of one that follows can be changed.
    const { call } = usableBranch(c, project, branch, 'read');
    if (action && ACCESS_OF_STATE[project.storageState] === 'write_blocked')
      throw new ApiError('WRITE_BLOCKED');
    if (await isProjectMoving(databaseOf(c), projectId)) throw new ApiError('PROJECT_MOVING');
    const { database, source } = triedSource(branch, isMasked ? (masked ?? null) : null);
    const tried: Tried = { role, source };
    const tryId = crypto.randomUUID();
    const actor = actorOf(c);
    const metadata = { role, source: { kind: source.kind, id: source.id } };
    const about = { projectId, branchId: branch.id, metadata };
    const report = await auditedWork(databaseOf(c), actor, { ...about, name: 'branch.tried' }, async () => {
      const { report: result } = await call('try.run', {
        try_id: tryId,
        project_id: projectId,
        branch_id: branch.id,
        source: database,
        busy_wait: BUSY_WAIT_MS,
        role,
        sql,
        params: values,
        limits: DEFAULT_LIMITS,
        wait: TRIAL_WAIT_MS,
      });
      if (!result) return { result, metadata: { ...metadata, job_id: tryId } };
      return {
        result,
        metadata: { ...metadata, outcome: result.outcome, statements: result.results.length },
      };
    });
    if (report) return c.json(toReport(report, tried), 200);
    const job = await repeatIfLost(() =>
      coordinatorOf(c.env, projectId).awaitTrial({ id: tryId, branch, tried, hostId: project.hostId, actor }),
    );
    return c.json(toJobResponse(unwrap(job)), 202);
  },
);

/** The jobs that this caller itself has started. */
const ownJobs = ({
  userId,
  machine,
}: {
  userId: string;
  machine?: { id: string } | null | undefined;
}): SQL | undefined =>
  and(
    sql`json_extract(${jobs.input}, '$.actor.userId') = ${userId}`,
    sql`json_extract(${jobs.input}, '$.actor.machine.id') is ${machine?.id ?? null}`,
  );

router.openapi(
  operation({
    access: 'rows.read',
    operationId: 'getTrial',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/try/{job_id}',
    summary: 'Get the report of a trial that became a job',
    description: 'Only for who has begun the trial, for an hour after its end.',
    tags,
    request: { params: BranchRefParams.extend({ job_id: z.uuid().toLowerCase() }) },
    responses: { 200: response('What the statements did.', Report), 202: PENDING },
    failures: [
      ...HOST_FAILURES,
      'SOURCE_BUSY',
      'SOURCE_NOT_ACTIVE',
      'COLLATION_OUTDATED',
      'RULES_NOT_APPLIED',
    ],
  }),
  async (c) => {
    const { project_id: projectId, branch_ref: reference, job_id: jobId } = c.req.valid('param');
    const { principal } = c.var;
    const branchId = referencedBranchId(projectId, reference, principal, knownBranchesOf);
    const [project, rows] = await inProject(c, projectId, (db) => [
      db
        .select()
        .from(jobs)
        .where(
          and(
            eq(jobs.id, jobId),
            eq(jobs.kind, 'branch.try'),
            eq(jobs.branchId, branchId),
            ownJobs(principal),
          ),
        ),
    ]);
    const job = found(rows, missing('job'));
    if (job.status === 'failed' && job.error) throw ApiError.of(publicFailure(job.error));
    if (job.status !== 'succeeded' || !('tried' in job.input)) return c.json(toJobResponse(job), 202);
    const read = callHostForClient(c.env, project.hostId, 'try.read', { try_id: job.id, wait: 0 });
    const { report } = unwrap(await read);
    if (!report) throw ApiError.of(missing('job'));
    return c.json(toReport(report, job.input.tried), 200);
  },
);

export const trialRoutes = router;
