import { and, eq, gt, inArray, isNotNull, sql } from 'drizzle-orm';
import { z } from 'zod';
import { AttemptsPerMinute } from '../../shared/branch/connection-attempts.ts';
import { SnapshotSchedule, Spares, type SparesState } from '../../shared/branch/snapshot.ts';
import { ProjectExtensions } from '../../shared/project/extensions.ts';
import {
  AppKey,
  DEFAULT_ENVIRONMENT,
  Environment,
  hasRoomForBranches,
  ProjectName,
} from '../../shared/project/project-name.ts';
import {
  DEFAULT_STORAGE_QUOTA_GIB,
  SELF_SERVICE_QUOTA_CAP_GIB,
  StorageQuotaGib,
} from '../../shared/project/storage-quota.ts';
import { DURABILITIES } from '../../shared/protocol/durability.ts';
import { recoverableUntil } from '../branches/branch.ts';
import { attemptsWithin, recoverableOf } from '../branches/branch-request.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import type { Database } from '../database/database.ts';
import { hosts, projects, snapshots } from '../database/schema.ts';
import type { Env } from '../env.ts';
import { ApiError, unwrap } from '../errors.ts';
import { Region } from '../hosts/enrolment.ts';
import { extensionsOn, hasPlaceOn, hasRoomOn, isOpenHost, offersExtensions } from '../hosts/host.ts';
import { callHostForClient, isLinked } from '../hosts/host-client.ts';
import { readState, recordSync } from '../hosts/pair.ts';
import { KEY_FAILURES, keyUseOf, recordedUses } from '../idempotency/idempotency-key.ts';
import { Job, toJobResponse } from '../jobs/job-resource.ts';
import { repeatIfLost } from '../lost-object.ts';
import { cutPage, keyset, PageQuery, pageOf } from '../pagination.ts';
import { allow } from '../permissions.ts';
import { type AppContext, actorOf } from '../pipeline/context.ts';
import { enforceRequestLimit } from '../pipeline/limits.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { databaseOf, primaryOf } from '../pipeline/replica-choice.ts';
import {
  changeProject,
  rotatedOf,
  UNMASKED_ROTATIONS,
  type UnmaskedRotation,
  unmaskedBranches,
} from '../projects/change-project.ts';
import {
  ChangedProject,
  CreatedProject,
  Project,
  ProjectDetails,
  toProjectResponse,
} from '../projects/project.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { readSettings } from '../settings.ts';
import { type ProjectView, projectViews, visible } from '../tenancy/project-access.ts';
import { CreationHeaders, endOfCreation, HOST_CREATION_FAILURES, PENDING, replay } from './creations.ts';
import { HOST_FAILURES, inProject, ProjectParams, requireFullData } from './in-project.ts';

const tags = ['Projects'];

const NewProject = z
  .strictObject({
    name: ProjectName,
    app_key: AppKey.optional(),
    env: Environment.default(DEFAULT_ENVIRONMENT),
    storage_quota_gib: StorageQuotaGib.default(DEFAULT_STORAGE_QUOTA_GIB),
    extensions: ProjectExtensions.default([]).meta({
      description:
        'Extensions that every database of the project gets, of those that the operator of a database host lets projects be created with. They cannot be changed later. Owners create all others by themselves, as `GET …/extensions` lists them.',
      example: ['postgis'],
    }),
    region: Region.optional().meta({
      description: 'Where its databases are to be, one of `GET /api/v1/regions`. Default: anywhere.',
    }),
  })
  .refine(({ app_key, env }) => app_key === undefined || hasRoomForBranches(app_key, env), {
    path: ['app_key'],
    message: 'too long: app_key and env leave no room for a branch name',
  })
  .meta({ example: { name: 'Web shop', app_key: 'web_shop', env: 'prod', storage_quota_gib: 0.5 } });

const ProjectChange = z
  .strictObject({
    name: ProjectName.optional(),
    storage_quota_gib: StorageQuotaGib.optional(),
    snapshot_schedule: SnapshotSchedule.nullable().optional(),
    connection_attempts_per_minute: AttemptsPerMinute.optional(),
    spares: Spares.optional(),
    durability: z.enum(DURABILITIES).optional().meta({
      description:
        '`sync`: commits to the databases of the project wait until the standby of their host has them on its disk, and for as long as it is away. `async`: they do not. A change ends the sessions that are open.',
    }),
    masked_only: z.boolean().optional().meta({
      description:
        'For owners and admins. Others, and API keys without the permission `data.full`, then get masked data only: no operation gives them what is in `main`, in an unmasked branch or in an unmasked snapshot. Passwords that were given out before stay valid without `rotate_credentials`.',
    }),
    change_approvals: z.int().min(0).max(2).optional().meta({
      description:
        'For owners and admins. Approvals by other members that a change of `main` needs before it can be applied.',
    }),
    rotate_credentials: z.enum(UNMASKED_ROTATIONS).optional().meta({
      description:
        'With `masked_only: true`, also if it was true before: replaces the passwords of all branches with unmasked data, as `rotateCredentials` does, and ends the sessions of the old ones. `all_but_main`: not those of `main`, which applications may use.',
      example: 'all',
    }),
  })
  .refine((change) => Object.keys(change).length > 0, 'Provide at least one field.')
  .refine(({ masked_only, rotate_credentials }) => rotate_credentials === undefined || masked_only === true, {
    path: ['rotate_credentials'],
    message: 'Provide it with masked_only true, and only then.',
  })
  .meta({ example: { storage_quota_gib: 1 } });

const Regions = z
  .strictObject({
    regions: z.array(
      z.strictObject({
        name: Region,
        accepts_projects: z.boolean().meta({ description: 'A host of it has a place for a new project.' }),
      }),
    ),
  })
  .meta({ id: 'Regions' });

const noHost = (where: string) =>
  `No database host${where} accepts new projects: none is enrolled, or all of them are draining. Contact the platform operator.`;

interface Wanted {
  projectId: string;
  quotaGib: number;
  extensions: readonly string[];
  region: string | undefined;
}

const noOffer = (region: string | undefined, offered: readonly string[]) =>
  `no database host${region === undefined ? '' : ` of ${region}`} creates projects with them; ${
    offered.length === 0 ? 'none is offered' : `offered: ${offered.join(', ')}`
  }`;

/**
 * The linked host with the fewest projects, of the region if one is named, that has the extensions, a place and room for the
 * quota.
 * @throws ApiError VALIDATION_FAILED for a region without hosts, or extensions that no host has; HOST_UNAVAILABLE, HOST_FULL
 */
async function chooseHost(
  env: Env,
  db: Database,
  { projectId, quotaGib, extensions, region }: Wanted,
): Promise<string> {
  const hasRoom = sql`${hasRoomOn(readSettings(env), sql`hosts.id`, projectId, quotaGib)}
    and ${hasPlaceOn(sql`hosts.id`)}`.mapWith(Boolean);
  const all = await db
    .select({
      id: hosts.id,
      hasRoom,
      isOpen: sql`${isOpenHost}`.mapWith(Boolean),
      offers: sql`${offersExtensions(sql`hosts.id`, extensions)}`.mapWith(Boolean),
      offered: sql<string | null>`(select json_group_array(name) from ${extensionsOn(sql`hosts.id`)})`,
    })
    .from(hosts)
    .where(region === undefined ? isOpenHost : eq(hosts.region, region))
    .orderBy(sql`(select count(*) from ${projects} where host_id = ${hosts.id})`);
  if (region !== undefined && all.length === 0) {
    const message = `there is no region ${region}; GET /api/v1/regions lists them`;
    throw new ApiError('VALIDATION_FAILED', { details: [{ path: 'region', message }] });
  }
  const open = all.filter(({ isOpen }) => isOpen);
  const candidates = open.filter(({ offers }) => offers);
  if (open.length > 0 && candidates.length === 0) {
    const offered = new Set(open.flatMap((host): string[] => JSON.parse(host.offered ?? '[]')));
    const message = noOffer(region, [...offered].sort());
    throw new ApiError('VALIDATION_FAILED', { details: [{ path: 'extensions', message }] });
  }
  if (candidates.length === 0)
    throw new ApiError('HOST_UNAVAILABLE', { message: noHost(region === undefined ? '' : ` of ${region}`) });
  let isFull = false;
  for (const { id, hasRoom } of candidates) {
    if (!(await isLinked(env, id))) continue;
    if (hasRoom) return id;
    isFull = true;
  }
  throw new ApiError(isFull ? 'HOST_FULL' : 'HOST_UNAVAILABLE');
}

const change = {
  access: 'project.change',
  method: 'patch',
  summary:
    'Rename a project, or change its storage quota, its schedule of snapshots, its limit of connection attempts, its durability, or who gets unmasked data',
  tags,
  request: { params: ProjectParams, body: jsonBody(ProjectChange) },
  responses: { 200: response('The updated project.', ChangedProject) },
  failures: [
    'PROJECT_NOT_ACTIVE',
    'QUOTA_ABOVE_SELF_SERVICE_CAP',
    'TENANT_QUOTA_REACHED',
    'HOST_FULL',
    'HOST_BUSY',
    'HOST_UNAVAILABLE',
    'NO_STANDBY',
    'CONNECTION_ATTEMPTS_ABOVE_MAX',
  ],
} as const;

const NOT_APPLIED =
  'The database host has not confirmed the new passwords yet. Until then the old ones stay valid; the gateway repeats it by itself.';

const UNCONFIRMED =
  'The standby does not confirm commits yet, so they are confirmed without it until it has caught up: see durability_state.';

/** What a response says of the passwords that lead to unmasked data: those who have one need no operation. */
async function passwordNotes(
  c: AppContext,
  projectId: string,
  rotation: UnmaskedRotation | undefined,
): Promise<{ warning?: string; rotated?: number }> {
  const unmasked = await unmaskedBranches(primaryOf(c), projectId);
  const others = rotatedOf(unmasked, 'all_but_main').length;
  if (rotation === 'all') return { rotated: unmasked.length };
  const isMainOnly = rotation === 'all_but_main' || others === 0;
  const branches = isMainOnly ? 'main' : `main and ${others} other branch${others === 1 ? '' : 'es'}`;
  const warning = `The passwords of ${branches} were not replaced: members who have them still get unmasked data. Send masked_only with rotate_credentials ${isMainOnly ? 'all' : 'all or all_but_main'} to replace them.`;
  return { warning, ...(rotation && { rotated: others }) };
}

async function changed(c: AppContext, projectId: string, request: z.output<typeof ProjectChange>) {
  if (request.masked_only !== undefined) unwrap(allow(c.var.principal, 'masking.change'));
  if (request.change_approvals !== undefined) unwrap(allow(c.var.principal, 'change.govern'));
  const [project] = await inProject(c, projectId, () => []);
  if (request.masked_only !== undefined) requireFullData(c, project);
  const settings = readSettings(c.env);
  const { connection_attempts_per_minute: attempts, ...others } = request;
  const limit = attempts === undefined ? undefined : unwrap(attemptsWithin(attempts, settings));
  const wanted = { ...others, connection_attempts_per_minute: limit };
  const { rotate_credentials: rotation } = request;
  if (rotation !== undefined) {
    const unmasked = await unmaskedBranches(primaryOf(c), projectId);
    for (const { id } of rotatedOf(unmasked, rotation)) await enforceRequestLimit(c, bucketOf.rotation(id));
    if (!(await isLinked(c.env, project.hostId))) throw new ApiError('HOST_UNAVAILABLE');
  }
  const changesAccess = [limit, rotation, wanted.spares, wanted.durability].some((one) => one !== undefined);
  // Its alarm is then set, in case the host does not learn the change from this request.
  if (changesAccess) await repeatIfLost(() => coordinatorOf(c.env, projectId).wake());
  const current = unwrap(await changeProject(primaryOf(c), settings, project, wanted, actorOf(c)));
  const applied = changesAccess && (await repeatIfLost(() => coordinatorOf(c.env, projectId).applyAccess()));
  // Its alarm takes the snapshots.
  if (wanted.snapshot_schedule) await repeatIfLost(() => coordinatorOf(c.env, projectId).wake());
  const state = wanted.durability && (await readState(c.env, project.hostId));
  if (state) await recordSync(c.env, project.hostId, state);
  const view = { ...current, ...(state && { sync: state.sync }) };
  const isUnconfirmed = wanted.durability === 'sync' && state?.sync !== 'confirming';
  const isRenamed = wanted.name !== undefined && wanted.name !== project.name;
  const sameName = isRenamed && sameNameWarning(current, await namesakes(primaryOf(c), c, current.name));
  const isTurnedOn = request.masked_only === true && (!project.maskedOnly || rotation !== undefined);
  const passwords = isTurnedOn ? await passwordNotes(c, projectId, rotation) : null;
  const warnings = [
    sameName ? sameName.warning : undefined,
    passwords?.warning,
    rotation && applied && !applied.ok && NOT_APPLIED,
    isUnconfirmed && UNCONFIRMED,
  ].filter((text) => typeof text === 'string');
  const isAsking = current.spares === null && (await snapshotsWithSpares(primaryOf(c), projectId)).length > 0;
  const notes = {
    spares_state: await sparesState(c.env, current, isAsking),
    recoverable: recoverableOf(project, new Date()),
    ...(warnings.length > 0 && { warning: warnings.join(' ') }),
    ...(passwords?.rotated !== undefined && { credentials_rotated: passwords.rotated }),
  };
  if (wanted.storage_quota_gib === undefined) return { ...toProjectResponse(view), ...notes };
  const status = await repeatIfLost(() => coordinatorOf(c.env, projectId).monitor.evaluate(projectId));
  const evaluated = status ? { ...view, storageUsedBytes: status.used, storageState: status.state } : view;
  return { ...toProjectResponse(evaluated), ...notes };
}

/** Projects of this name that the caller can see, the project itself among them if it exists. */
const namesakes = (db: Database, c: AppContext, name: string) =>
  db
    .select({ id: projects.id, appKey: projects.appKey, env: projects.env })
    .from(projects)
    .where(
      and(
        visible(db, c.var.principal, c.var.reach),
        eq(projects.name, name),
        inArray(projects.status, ['creating', 'active']),
      ),
    )
    .limit(2);

/** Names of projects are for people, and need not be unique. */
function sameNameWarning(
  { id, name }: { id: string; name: string },
  found: Awaited<ReturnType<typeof namesakes>>,
) {
  const other = found.find((project) => project.id !== id);
  return (
    other && {
      warning: `Another project is named ${name} too (${other.appKey}_${other.env}). Rename one of them, or name them by ID.`,
    }
  );
}

/** One snapshot for which a number of spares was asked for. */
const snapshotsWithSpares = (db: Database, projectId: string) =>
  db
    .select({ id: snapshots.id })
    .from(snapshots)
    .where(
      and(
        eq(snapshots.projectId, projectId),
        inArray(snapshots.status, ['making', 'ready']),
        gt(snapshots.spares, 0),
      ),
    )
    .limit(1);

/** @returns null if no number was asked for: the host is asked only then */
async function sparesState(
  env: Env,
  { id, hostId, spares }: Pick<ProjectView, 'id' | 'hostId' | 'spares'>,
  bySnapshot: boolean,
): Promise<SparesState | null> {
  if (!spares && !bySnapshot) return null;
  const read = await callHostForClient(env, hostId, 'spares.read', { project_id: id });
  return read.ok ? read.value : { wanted: spares ?? 0, ready: 0, waiting_for: 'host' };
}

const router = operations();

router.openapi(
  operation({
    access: 'project.create',
    machines: 'of_tenant',
    operationId: 'createProject',
    method: 'post',
    path: '/api/v1/projects',
    summary: 'Create a project and its main database',
    description:
      'The databases of a new project accept no connections until a network rule is created. If `app_key` and `env` are in use outside the tenant, the app key gets a random suffix of four characters; the response has the app key in use.',
    tags,
    request: { headers: CreationHeaders, body: jsonBody(NewProject) },
    responses: {
      201: response('The new project and its branch `main`.', CreatedProject, 'Idempotency-Replayed'),
      202: PENDING,
    },
    failures: [
      ...KEY_FAILURES,
      'PROJECT_EXISTS',
      'PROJECT_LIMIT_REACHED',
      'TENANT_QUOTA_REACHED',
      'QUOTA_ABOVE_SELF_SERVICE_CAP',
      'NOT_FOUND',
      ...HOST_CREATION_FAILURES,
    ],
  }),
  async (c) => {
    const body = c.req.valid('json');
    const { prefer, 'idempotency-key': key } = c.req.valid('header');
    const db = databaseOf(c);
    const keyUse = await keyUseOf(c.var.principal, c.req.path, key, body);
    const [uses, sameName] = await db.batch([
      recordedUses(db, keyUse, new Date()),
      namesakes(db, c, body.name),
    ]);
    const replayed = replay(c, uses, keyUse);
    if (replayed) {
      const made = replayed.body as z.input<typeof CreatedProject>;
      return c.json({ ...made, ...sameNameWarning(made, sameName) }, 201);
    }
    if (body.storage_quota_gib > SELF_SERVICE_QUOTA_CAP_GIB) {
      throw new ApiError('QUOTA_ABOVE_SELF_SERVICE_CAP', { limit: SELF_SERVICE_QUOTA_CAP_GIB });
    }
    const projectId = crypto.randomUUID();
    const { region, extensions, storage_quota_gib: quotaGib } = body;
    const hostId = await chooseHost(c.env, db, { projectId, quotaGib, extensions, region });
    const outcome = await coordinatorOf(c.env, projectId).createProject(
      {
        jobId: crypto.randomUUID(),
        projectId,
        mainBranchId: crypto.randomUUID(),
        name: body.name,
        requestedAppKey: body.app_key ?? null,
        env: body.env,
        storageQuotaGib: quotaGib,
        extensions,
        hostId,
        actor: actorOf(c),
        keyUse,
      },
      prefer,
    );
    const end = await endOfCreation(c, outcome);
    if ('job' in end) return c.json(end.job, 202);
    const made = end.body as z.input<typeof CreatedProject>;
    return c.json({ ...made, ...sameNameWarning(made, sameName) }, 201);
  },
);

router.openapi(
  operation({
    access: 'project.read',
    operationId: 'listProjects',
    method: 'get',
    path: '/api/v1/projects',
    summary: 'List projects, oldest first',
    description:
      'Owners and admins see all projects of the tenant, other users the projects that they created or that are shared with them.',
    tags,
    request: { query: PageQuery },
    responses: { 200: response('A page of projects.', pageOf('projects', Project)) },
  }),
  async (c) => {
    const query = c.req.valid('query');
    const { orderBy, beyond } = keyset(projects, 'oldest_first', query);
    const db = databaseOf(c);
    const rows = await projectViews(db)
      .where(and(visible(db, c.var.principal, c.var.reach), beyond))
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ projects: page.map(toProjectResponse), next_cursor }, 200);
  },
);

router.openapi(
  operation({
    access: 'project.read',
    operationId: 'listRegions',
    method: 'get',
    path: '/api/v1/regions',
    summary: 'List the regions of the database hosts',
    tags,
    responses: { 200: response('The regions, by name. None: hosts are not divided into regions.', Regions) },
  }),
  async (c) => {
    const accepts = sql`max(${isOpenHost} and ${hasPlaceOn(sql`hosts.id`)})`.mapWith(Boolean);
    const rows = await databaseOf(c)
      .select({ name: sql<string>`${hosts.region}`, accepts_projects: accepts })
      .from(hosts)
      .where(and(isNotNull(hosts.region), isNotNull(hosts.enrolledAt)))
      .groupBy(hosts.region)
      .orderBy(hosts.region);
    return c.json({ regions: rows }, 200);
  },
);

router.openapi(
  operation({
    access: 'project.read',
    operationId: 'getProject',
    method: 'get',
    path: '/api/v1/projects/{project_id}',
    summary: 'Get a project',
    tags,
    request: { params: ProjectParams },
    responses: { 200: response('The project.', ProjectDetails) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const [project, asking] = await inProject(c, projectId, (db) => [snapshotsWithSpares(db, projectId)]);
    const spares_state = await sparesState(c.env, project, asking.length > 0);
    const recoverable = recoverableOf(project, new Date());
    return c.json({ ...toProjectResponse(project), spares_state, recoverable }, 200);
  },
);

router.openapi(
  operation({ ...change, operationId: 'updateProject', path: '/api/v1/projects/{project_id}' }),
  async (c) => c.json(await changed(c, c.req.valid('param').project_id, c.req.valid('json')), 200),
);

// Specification 4.4 and 9 define a separate path for the quota, without `/api`.
router.openapi(
  operation({
    ...change,
    operationId: 'updateProjectQuota',
    path: '/v1/projects/{project_id}',
    summary: 'Rename a project or change its storage quota (alternative path)',
    description: 'The same operation as `updateProject`.',
  }),
  async (c) => c.json(await changed(c, c.req.valid('param').project_id, c.req.valid('json')), 200),
);

const ProjectDeletion = Job.extend({
  recoverable_until: z.iso.datetime().nullable().meta({
    description:
      'Until when its data is in the copies and the log from which the database host recovers other projects. No request recovers this one. Null: the host keeps no past.',
  }),
}).meta({ id: 'ProjectDeletion' });

router.openapi(
  operation({
    access: 'project.change',
    operationId: 'deleteProject',
    method: 'delete',
    path: '/api/v1/projects/{project_id}',
    summary: 'Delete a project and all its databases',
    tags,
    request: { params: ProjectParams },
    responses: {
      202: response('The job that drops the databases and logins of the project.', ProjectDeletion),
    },
    failures: ['PROJECT_NOT_ACTIVE'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const [project] = await inProject(c, projectId, () => []);
    const deleted = await coordinatorOf(c.env, projectId).deleteProject({
      id: crypto.randomUUID(),
      projectId,
      hostId: project.hostId,
      actor: actorOf(c),
    });
    const job = toJobResponse(unwrap(deleted));
    const until = recoverableUntil(new Date(job.created_at), project.pastHours);
    return c.json({ ...job, recoverable_until: until }, 202);
  },
);

const Extension = z
  .strictObject({
    name: z.string().meta({ example: 'pgcrypto' }),
    default_version: z.string().meta({ example: '1.4' }),
    comment: z.string().meta({ example: 'cryptographic functions' }),
    trusted: z.boolean().meta({
      description:
        'The owner of a branch can create it. PostgreSQL trusts it, or the operator of the host has allowed it. All others need a superuser.',
    }),
  })
  .meta({ id: 'Extension' });

router.openapi(
  operation({
    access: 'branch.read',
    operationId: 'listExtensions',
    method: 'get',
    path: '/api/v1/projects/{project_id}/extensions',
    summary: "List the extensions of the project's host, by name",
    tags,
    request: { params: ProjectParams },
    responses: {
      200: response('The extensions.', z.strictObject({ extensions: z.array(Extension) })),
    },
    failures: HOST_FAILURES,
  }),
  async (c) => {
    const [project] = await inProject(c, c.req.valid('param').project_id, () => []);
    return c.json(unwrap(await callHostForClient(c.env, project.hostId, 'host.extensions', {})), 200);
  },
);

export const projectRoutes = router;
