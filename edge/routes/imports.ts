import { z } from 'zod';
import { COPY_JOBS } from '../../shared/limits.ts';
import { leftAloneOf, ProbedSource, SourceTable } from '../../shared/protocol/transfer-operations.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { unwrap } from '../errors.ts';
import { Job, toJobResponse } from '../jobs/job-resource.ts';
import { repeatIfLost } from '../lost-object.ts';
import { actorOf } from '../pipeline/context.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { ABOUT_SOURCE, COPY_FAILURES, probed, roomBytes, SOURCE_FIELDS, Warnings } from './follow.ts';
import { inProject, ProjectParams } from './in-project.ts';

const tags = ['Imports'];

const NewImport = z
  .strictObject({
    ...SOURCE_FIELDS,
    jobs: z.int().min(1).max(COPY_JOBS.max).default(COPY_JOBS.default).meta({
      description: 'Tables that are copied concurrently.',
    }),
  })
  .meta({
    example: {
      source_url: 'postgresql://app:secret@db.example.com:5432/shop',
      tables: ['book', 'sales.invoice'],
    },
  });

const ImportProbe = z
  .strictObject({
    source: ProbedSource.pick({
      host: true,
      port: true,
      database: true,
      version: true,
      tls: true,
      total_bytes: true,
    }),
    tables: z.array(SourceTable.omit({ follows: true })).meta({
      description: 'The tables whose rows would be copied. Rows are estimates of PostgreSQL.',
    }),
    has_more: z.boolean().meta({ description: 'There are more tables than are listed.' }),
    warnings: Warnings.meta({ description: 'What would be left out.' }),
  })
  .meta({ id: 'ImportProbe' });

const router = operations();

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'importSource',
    method: 'post',
    path: '/api/v1/projects/{project_id}/import',
    summary: 'Copy a PostgreSQL database elsewhere into an empty main',
    description: `The database host connects to the source and copies its schema, the rows of one snapshot, and the values of its sequences, without a limit of time. The job shows how far each table is. Nobody can connect to \`main\` meanwhile; a failure, or \`DELETE\`, leaves it as it was. The response is the job, once the source was checked. ${ABOUT_SOURCE}`,
    tags,
    request: { params: ProjectParams, body: jsonBody(NewImport) },
    responses: { 202: response('The job of the import.', Job) },
    failures: COPY_FAILURES,
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const body = c.req.valid('json');
    const { project, branch, source } = await probed(c, projectId, 'import', body);
    const job = await repeatIfLost(() =>
      coordinatorOf(c.env, projectId).startSource({
        jobId: crypto.randomUUID(),
        branch,
        sourceUrl: body.source_url,
        what: {
          snapshotId: crypto.randomUUID(),
          source: { host: source.host, port: source.port, database: source.database },
          tables: body.tables ?? null,
          leftAlone: leftAloneOf(body),
          roomBytes: roomBytes(project),
          jobs: body.jobs,
        },
        follow: null,
        hostId: project.hostId,
        actor: actorOf(c),
      }),
    );
    return c.json(toJobResponse(unwrap(job)), 202);
  },
);

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'probeImport',
    method: 'post',
    path: '/api/v1/projects/{project_id}/import/probe',
    summary: 'Check whether a PostgreSQL database elsewhere can be imported',
    description: `The database host connects to the source, reads its catalog in one read-only transaction, and changes nothing. ${ABOUT_SOURCE}`,
    tags,
    request: { params: ProjectParams, body: jsonBody(NewImport) },
    responses: { 200: response('The source can be imported.', ImportProbe) },
    failures: COPY_FAILURES,
  }),
  async (c) => {
    const { source, findings } = await probed(
      c,
      c.req.valid('param').project_id,
      'import',
      c.req.valid('json'),
    );
    const { tables, has_more, free_slots: _slots, wal_keep_bytes: _wal, ...about } = source;
    const listed = tables.map(({ follows: _, ...table }) => table);
    return c.json({ source: about, tables: listed, has_more, warnings: findings }, 200);
  },
);

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'cancelImport',
    method: 'delete',
    path: '/api/v1/projects/{project_id}/import',
    summary: 'Cancel the import of a project',
    description:
      'Everything that was copied is removed, and `main` is opened again, empty. The response is the job, which ends as `failed` with `JOB_CANCELLED`. 404: no import is under way.',
    tags,
    request: { params: ProjectParams },
    responses: { 202: response('The job of the import.', Job) },
    failures: ['IMPORT_FINISHING'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    await inProject(c, projectId, () => []);
    const cancelled = await repeatIfLost(() =>
      coordinatorOf(c.env, projectId).cancelJob({ projectId, kind: 'branch.import', actor: actorOf(c) }),
    );
    return c.json(toJobResponse(unwrap(cancelled)), 202);
  },
);

export const importRoutes = router;
