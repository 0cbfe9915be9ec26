import { z } from 'zod';
import { COPY_JOBS } from '../../shared/limits.ts';
import { quotaBytes } from '../../shared/project/storage-quota.ts';
import {
  leftAloneOf,
  ProbedSource,
  SOURCE_NAME_MAX,
  SOURCE_TABLES_MAX,
  SOURCE_URL_MAX,
  SourceFinding,
  SourceTable,
} from '../../shared/protocol/transfer-operations.ts';
import { referencedBranch } from '../branches/branch-reference.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import { Job, toJobResponse } from '../jobs/job-resource.ts';
import { repeatIfLost } from '../lost-object.ts';
import { missing } from '../missing.ts';
import { type AppContext, actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import { primaryOf } from '../pipeline/replica-choice.ts';
import { Follow, followOf, recordResumed, toFollowResponse } from '../sources/record.ts';
import { isLive } from '../sources/states.ts';
import type { ProjectView } from '../tenancy/project-access.ts';
import { inProject, ProjectParams } from './in-project.ts';

/** A `SOURCE_UNSUITABLE` lists the same. */
const Finding = SourceFinding.meta({ id: 'SourceFinding' });

const Names = z.array(z.string().min(1).max(SOURCE_NAME_MAX)).min(1).max(SOURCE_TABLES_MAX).optional();
const ALONE = 'neither locked nor read, and what depends on them is left out with a warning.';

/** The parts of a request that name a source. */
export const SOURCE_FIELDS = {
  source_url: z.string().min(1).max(SOURCE_URL_MAX).meta({
    description:
      'URL of the source, with its password, which no record, log or reply shows. TLS is required; `sslmode=verify-full` requires a certificate of a known authority.',
  }),
  tables: z.array(z.string().min(1).max(SOURCE_NAME_MAX)).min(1).max(SOURCE_TABLES_MAX).optional().meta({
    description:
      'The tables that are meant, with their schema unless that is `public`. A partitioned table includes its partitions. Default: all.',
  }),
  schemas: Names.meta({ description: `Objects of other schemas are ${ALONE} Default: all.` }),
  exclude_schemas: Names.meta({ description: `Schemas that are ${ALONE}` }),
  exclude_tables: Names.meta({
    description: `Tables, with their schema unless that is \`public\`, that are ${ALONE} A partitioned table includes its partitions.`,
  }),
};

const NewFollow = z
  .strictObject({
    ...SOURCE_FIELDS,
    publication: z.string().min(1).max(SOURCE_NAME_MAX).optional().meta({
      description:
        'A publication that exists at the source, for a login that owns no table there. Default: one is made.',
    }),
  })
  .meta({
    example: {
      source_url: 'postgresql://app:secret@db.example.com:5432/shop',
      tables: ['book', 'sales.invoice'],
    },
  });

/** What was wrong, but did not prevent it. */
export const Warnings = z.array(Finding);

const FollowProbe = z
  .strictObject({
    source: ProbedSource.omit({ tables: true, has_more: true }),
    tables: z.array(SourceTable).meta({
      description:
        '`follows`: `all` changes, only new rows (`inserts`), or `nothing`. Rows are estimates of PostgreSQL.',
    }),
    has_more: z.boolean().meta({ description: 'There are more tables than are listed.' }),
    warnings: Warnings.meta({ description: 'What will not follow, or only in part.' }),
  })
  .meta({ id: 'FollowProbe' });

/** The failures of a probe for `main`. */
export const COPY_FAILURES = [
  'SOURCE_UNSUITABLE',
  'PROJECT_NOT_ACTIVE',
  'PROJECT_MOVING',
  'PROJECT_BUSY',
  'BRANCH_NOT_ACTIVE',
  'BRANCH_FOLLOWING',
  'LOGIN_REFUSED',
  'STATEMENT_REFUSED',
  'TIME_LIMIT_REACHED',
  'HOST_BUSY',
  'HOST_UNAVAILABLE',
  'HOST_UPGRADE_REQUIRED',
  'HOST_TIMEOUT',
  'DATABASE_SERVER_UNAVAILABLE',
] as const;

export const ABOUT_SOURCE =
  'The source has to be at a public address, unless the operator of the host allows its network. Without a certificate of a known authority, the login has to use SCRAM with channel binding. `SOURCE_UNSUITABLE` lists everything that is wrong, with the statement that mends it where there is one.';

/** What the storage quota of the project has left. */
export const roomBytes = ({ storageQuotaGib, storageUsedBytes }: ProjectView): number =>
  Math.max(0, Math.floor(quotaBytes(storageQuotaGib) - storageUsedBytes));

const MAIN = 'main';

/**
 * The project of a request, its `main`, and the check of a source by their host.
 * @throws ApiError SOURCE_UNSUITABLE with everything that is wrong
 */
export async function probed(
  c: AppContext,
  projectId: string,
  use: 'follow' | 'import',
  { source_url, tables, publication, ...body }: z.output<typeof NewFollow>,
) {
  const [project, branches] = await inProject(c, projectId, (db) => [
    referencedBranch(db, projectId, MAIN, c.var.principal),
  ]);
  if (project.status !== 'active') throw new ApiError('PROJECT_NOT_ACTIVE');
  const branch = found(branches);
  if (branch.status !== 'active') throw new ApiError('BRANCH_NOT_ACTIVE');
  if (branch.hold === 'import') throw new ApiError('PROJECT_BUSY');
  if (branch.hold === 'following') throw new ApiError('BRANCH_FOLLOWING');
  const into = { branch_id: branch.id, database: branch.databaseName };
  const about = { source_url, tables: tables ?? null, publication: publication ?? null };
  const wanted = { ...about, ...leftAloneOf(body), use, into, room_bytes: roomBytes(project) };
  const call = { project_id: project.id, ...wanted };
  const { source, findings } = unwrap(await callHostForClient(c.env, project.hostId, 'transfer.probe', call));
  if (!source || findings.some(({ severity }) => severity === 'error'))
    throw new ApiError('SOURCE_UNSUITABLE', { details: findings });
  return { project, branch, source, findings };
}

const tags = ['Following'];
const PATH = '/api/v1/projects/{project_id}/follow';

const NewCutover = z
  .strictObject({
    writes_stopped: z.boolean().default(false).meta({
      description:
        'You have stopped everything that writes to the source. Default: the host makes its database read-only and ends its sessions, for which the login has to own the database.',
    }),
  })
  .meta({ example: { writes_stopped: false } });

const Resumption = z
  .strictObject({
    apply_changes: z.boolean().default(false).meta({
      description:
        'Applies every change of the schema to `main`, such as those in the `statement` of the problem. Default: only additions.',
    }),
  })
  .meta({ example: { apply_changes: true } });

const JobOfFollow = response('The job.', Job);

const router = operations();

/** The project of a request with what it follows. @throws ApiError NOT_FOUND */
async function followed(c: AppContext, projectId: string) {
  const [project, [found]] = await inProject(c, projectId, (db) => [followOf(db, projectId)]);
  if (!found) throw ApiError.of(missing('follow'));
  const { row, database, steps } = found;
  return { project, row, steps, ofMain: { project_id: projectId, branch_id: row.branchId, database } };
}

/** What ends what a project follows. @throws ApiError FOLLOW_STATE with the state */
async function ending(c: AppContext, projectId: string, writesStopped: boolean | null) {
  const { project, row } = await followed(c, projectId);
  const coordinator = coordinatorOf(c.env, projectId);
  const actor = actorOf(c);
  if (row.state === 'copying' && writesStopped === null)
    return unwrap(
      await repeatIfLost(() => coordinator.cancelJob({ projectId, kind: 'follow.start', actor })),
    );
  if (!isLive(row)) throw new ApiError('FOLLOW_STATE', { state: row.state });
  const request = { jobId: crypto.randomUUID(), follow: row, hostId: project.hostId, actor };
  return unwrap(await repeatIfLost(() => coordinator.endFollowing(request, writesStopped)));
}

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'probeSource',
    method: 'post',
    path: `${PATH}/probe`,
    summary: 'Check whether a PostgreSQL database elsewhere can be followed',
    description: `The database host connects to the source, reads its catalog in one read-only transaction, and changes nothing. ${ABOUT_SOURCE}`,
    tags,
    request: { params: ProjectParams, body: jsonBody(NewFollow) },
    responses: { 200: response('The source can be followed.', FollowProbe) },
    failures: COPY_FAILURES,
  }),
  async (c) => {
    const { source, findings } = await probed(
      c,
      c.req.valid('param').project_id,
      'follow',
      c.req.valid('json'),
    );
    const { tables, has_more, ...about } = source;
    return c.json({ source: about, tables, has_more, warnings: findings }, 200);
  },
);

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'startFollowing',
    method: 'post',
    path: PATH,
    summary: 'Make main follow a PostgreSQL database elsewhere',
    description:
      'Checks the source as `POST …/follow/probe` does, copies it into the empty `main` as an import does, and then applies each change of the source. Meanwhile `main` can only be read, and its branches are ordinary ones. The response is the job of the copy.',
    tags,
    request: { params: ProjectParams, body: jsonBody(NewFollow) },
    responses: { 202: JobOfFollow },
    failures: [...COPY_FAILURES, 'FOLLOW_STATE'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const body = c.req.valid('json');
    const { project, branch, source } = await probed(c, projectId, 'follow', body);
    const { host, port, database, version } = source;
    const request = {
      jobId: crypto.randomUUID(),
      branch,
      sourceUrl: body.source_url,
      what: {
        snapshotId: crypto.randomUUID(),
        source: { host, port, database },
        tables: body.tables ?? null,
        leftAlone: leftAloneOf(body),
        roomBytes: roomBytes(project),
        jobs: COPY_JOBS.default,
      },
      follow: {
        version,
        publication: body.publication ?? null,
        emptying: { jobId: crypto.randomUUID(), snapshotId: crypto.randomUUID() },
      },
      hostId: project.hostId,
      actor: actorOf(c),
    };
    const job = await repeatIfLost(() => coordinatorOf(c.env, projectId).startSource(request));
    return c.json(toJobResponse(unwrap(job)), 202);
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    machines: 'unlimited',
    operationId: 'getFollowing',
    method: 'get',
    path: PATH,
    summary: 'Get what main follows, and how far it is behind',
    description: 'Without a reply of the database host, the lag and `slot_bytes` are null.',
    tags,
    request: { params: ProjectParams },
    responses: { 200: response('What it follows, or has followed last.', Follow) },
  }),
  async (c) => {
    const { project, row, steps, ofMain } = await followed(c, c.req.valid('param').project_id);
    const live = isLive(row) ? await callHostForClient(c.env, project.hostId, 'follow.status', ofMain) : null;
    return c.json(toFollowResponse(row, steps, live?.ok ? live.value : null), 200);
  },
);

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'stopFollowing',
    method: 'delete',
    path: PATH,
    summary: 'Stop following',
    description:
      'Drops the slot and the publication at the source, and opens `main` with the data that it has. What could not be dropped there is a warning of the job. While it still copies, everything that was copied is removed, and the job of the copy is the response.',
    tags,
    request: { params: ProjectParams },
    responses: { 202: JobOfFollow },
    failures: ['FOLLOW_STATE', 'PROJECT_NOT_ACTIVE', 'BRANCH_NOT_ACTIVE', 'HOST_BUSY'],
  }),
  async (c) => c.json(toJobResponse(await ending(c, c.req.valid('param').project_id, null)), 202),
);

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'resumeFollowing',
    method: 'post',
    path: `${PATH}/resume`,
    summary: 'Continue to follow after a problem',
    description:
      'Compares both schemas, applies additions, and continues. `problem` in the response says why replication is still stopped.',
    tags,
    request: { params: ProjectParams, body: optionalJsonBody(Resumption) },
    responses: { 200: response('What it follows.', Follow) },
    failures: [
      ...(['FOLLOW_STATE', 'HOST_BUSY', 'HOST_UNAVAILABLE', 'HOST_UPGRADE_REQUIRED'] as const),
      ...(['HOST_TIMEOUT', 'DATABASE_SERVER_UNAVAILABLE', 'STATEMENT_REFUSED', 'PROJECT_BUSY'] as const),
    ],
  }),
  async (c) => {
    const { project, row, steps, ofMain } = await followed(c, c.req.valid('param').project_id);
    if (!isLive(row)) throw new ApiError('FOLLOW_STATE', { state: row.state });
    const call = { ...ofMain, ...c.req.valid('json') };
    const status = unwrap(await callHostForClient(c.env, project.hostId, 'follow.resume', call));
    await recordResumed(primaryOf(c), row, status, actorOf(c), new Date());
    return c.json(toFollowResponse(row, steps, status), 200);
  },
);

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'cutOver',
    method: 'post',
    path: `${PATH}/cutover`,
    summary: 'Make main take over from what it follows',
    description:
      'Refuses writes at the source, waits for its last change, sets the sequences, compares the rows of both sides, drops the slot and the publication there, and opens `main`. Until its last step it can be called off, and a failure does so. The response is the job.',
    tags,
    request: { params: ProjectParams, body: optionalJsonBody(NewCutover) },
    responses: { 202: JobOfFollow },
    failures: ['FOLLOW_STATE', 'PROJECT_NOT_ACTIVE', 'BRANCH_NOT_ACTIVE', 'HOST_BUSY'],
  }),
  async (c) => {
    const { writes_stopped } = c.req.valid('json');
    return c.json(toJobResponse(await ending(c, c.req.valid('param').project_id, writes_stopped)), 202);
  },
);

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'callOffCutover',
    method: 'delete',
    path: `${PATH}/cutover`,
    summary: 'Call a cut-over off',
    description:
      'The source accepts writes again, and `main` continues to follow. The response is the job, which ends as `failed` with `JOB_CANCELLED`, or as `succeeded` if its last step had begun. 404: no cut-over is under way.',
    tags,
    request: { params: ProjectParams },
    responses: { 202: JobOfFollow },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    await inProject(c, projectId, () => []);
    const cancellation = { projectId, kind: 'follow.cutover', actor: actorOf(c) } as const;
    const cancelled = await repeatIfLost(() => coordinatorOf(c.env, projectId).cancelJob(cancellation));
    return c.json(toJobResponse(unwrap(cancelled)), 202);
  },
);

export const followRoutes = router;
