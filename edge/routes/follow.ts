import { z } from 'zod';
import { quotaBytes } from '../../shared/project/storage-quota.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import {
  ProbedSource,
  SOURCE_NAME_MAX,
  SOURCE_TABLES_MAX,
  SOURCE_URL_MAX,
  SourceFinding,
  SourceTable,
} from '../../shared/protocol/transfer-operations.ts';
import { ApiError, unwrap } from '../errors.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import type { AppContext } from '../pipeline/context.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import type { ProjectView } from '../tenancy/project-access.ts';
import { inProject, ProjectParams } from './in-project.ts';

/** A `SOURCE_UNSUITABLE` lists the same. */
const Finding = SourceFinding.meta({ id: 'SourceFinding' });

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

/** The failures of a probe. */
export const PROBE_FAILURES = [
  'SOURCE_UNSUITABLE',
  'PROJECT_NOT_ACTIVE',
  'PROJECT_BUSY',
  'HOST_BUSY',
  'HOST_UNAVAILABLE',
  'HOST_UPGRADE_REQUIRED',
  'HOST_TIMEOUT',
  'DATABASE_SERVER_UNAVAILABLE',
] as const;

/** What the storage quota of the project has left. */
export const roomBytes = ({ storageQuotaGib, storageUsedBytes }: ProjectView): number =>
  Math.max(0, Math.floor(quotaBytes(storageQuotaGib) - storageUsedBytes));

/** Has the host of the project check a source. @throws ApiError SOURCE_UNSUITABLE with everything that is wrong */
export async function probe(
  c: AppContext,
  project: ProjectView,
  wanted: Omit<Params<'transfer.probe'>, 'project_id' | 'room_bytes'>,
) {
  if (project.status !== 'active') throw new ApiError('PROJECT_NOT_ACTIVE');
  const call = { project_id: project.id, room_bytes: roomBytes(project), ...wanted };
  const { source, findings } = unwrap(await callHostForClient(c.env, project.hostId, 'transfer.probe', call));
  if (!source || findings.some(({ severity }) => severity === 'error'))
    throw new ApiError('SOURCE_UNSUITABLE', { details: findings });
  return { source, findings };
}

const router = operations();

router.openapi(
  operation({
    access: 'follow.change',
    operationId: 'probeSource',
    method: 'post',
    path: '/api/v1/projects/{project_id}/follow/probe',
    summary: 'Check whether a PostgreSQL database elsewhere can be followed',
    description:
      'The database host connects to the source, reads its catalog in one read-only transaction, and changes nothing. `SOURCE_UNSUITABLE` lists everything that is wrong, with the statement that mends it where there is one. The source has to be at a public address, unless the operator of the host allows its network. Without a certificate of a known authority, the login has to use SCRAM with channel binding.',
    tags: ['Following'],
    request: { params: ProjectParams, body: jsonBody(NewFollow) },
    responses: { 200: response('The source can be followed.', FollowProbe) },
    failures: PROBE_FAILURES,
  }),
  async (c) => {
    const { project_id } = c.req.valid('param');
    const { source_url, tables = null, publication = null } = c.req.valid('json');
    const [project] = await inProject(c, project_id, () => []);
    const wanted = { source_url, tables, publication, use: 'follow', into: null } as const;
    const { source, findings } = await probe(c, project, wanted);
    const { tables: found, has_more, ...about } = source;
    return c.json({ source: about, tables: found, has_more, warnings: findings }, 200);
  },
);

export const followRoutes = router;
