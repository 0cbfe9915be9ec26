import { eq } from 'drizzle-orm';
import { z } from 'zod';
import { noActor } from '../audit/audit-event.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { MOVE_PHASES } from '../database/column-types.ts';
import { type Database, isOneOf } from '../database/database.ts';
import { drains, type MoveRow, moves } from '../database/move-schema.ts';
import { hosts, type JobRow, jobs, projects } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import { Job, toJobResponse } from '../jobs/job-resource.ts';
import { repeatIfLost } from '../lost-object.ts';
import { missing } from '../missing.ts';
import { movingBranches } from '../moves/reserve.ts';
import { type AppContext, type AppEnv, connectingIp } from '../pipeline/context.ts';
import { jsonBody, operation, operations, optionalJsonBody, response } from '../pipeline/operation.ts';
import { primaryOf } from '../pipeline/replica-choice.ts';
import { urlsChange } from '../projects/dns-names.ts';
import { continueDrain, drainOf, waitingOf } from '../reconciliation/drain-host.ts';
import { readSettings } from '../settings.ts';
import { HostParams, ProjectParams } from './in-project.ts';

/** Moves of projects to other hosts, for the operator of the platform. */
const tags = ['Platform'];

const Wanted = {
  branches: z.enum(['all', 'protected']).default('all').meta({
    description:
      '`protected`: the other branches are deleted when the project has moved, and cannot be restored. Default: all move.',
  }),
  drop_snapshots: z.boolean().default(false).meta({
    description:
      'Snapshots, and deleted branches that can be restored, do not move. With `true` they are discarded; otherwise a project that has some is refused.',
  }),
};

const NewMove = z
  .strictObject({ host_id: z.uuid().meta({ description: 'The other database host.' }), ...Wanted })
  .meta({ example: { host_id: '0b9f3f1e-5a52-4f6a-8f6e-0f6f5d9b7a11' } });

const NewDrain = z.strictObject(Wanted).meta({ example: { drop_snapshots: true } });

const Move = z
  .strictObject({
    state: z.enum(['planned', ...MOVE_PHASES]).meta({
      description:
        '`building`: the other host is filled, and the move can be cancelled. `fenced`: neither host has clients, for moments. `moved`: the project is on the other host. `undone`: it stays where it was.',
    }),
    from_host_id: z.uuid(),
    to_host_id: z.uuid(),
    urls_change: z.boolean().meta({
      description:
        'The connection URLs show another address or port afterwards: the project has no name of its own, the certificate of a host does not cover it, or the hosts have different ports. The passwords stay.',
    }),
    branches: z.array(
      z.strictObject({
        id: z.uuid(),
        name: z.string(),
        size_bytes: z.int().meta({ description: 'It arrives as an independent database of this size.' }),
        state: z.enum(['waiting', 'copying', 'copied', 'left_out']),
        read_only: z.boolean().meta({ description: 'It can only be read until the project has moved.' }),
      }),
    ),
    kept_until: z.iso.datetime().nullable().meta({
      description: 'Until when the former host keeps the closed databases. Null: the project has not moved.',
    }),
    job: Job.pick({ id: true, status: true, steps: true, error: true }).nullable(),
  })
  .meta({ id: 'Move' });

const stateOf = (state: MoveRow['branches'][number]['state']) =>
  state === 'waiting' || state === 'copied' ? state : ('copying' as const);

const stateOfJob = (row: JobRow) => {
  const { id, status, steps, error } = toJobResponse(row);
  return { id, status, steps, error };
};

const toMoveResponse = (move: MoveRow, job: JobRow | null, urls_change: boolean): z.output<typeof Move> => ({
  state: move.phase,
  from_host_id: move.fromHostId,
  to_host_id: move.toHostId,
  urls_change,
  branches: move.branches.map(({ id, name, bytes, state, frozen }) => ({
    id,
    name,
    size_bytes: bytes,
    state: stateOf(state),
    read_only: frozen,
  })),
  kept_until: move.keptUntil?.toISOString() ?? null,
  job: job && stateOfJob(job),
});

const ofProject = async (db: Database, projectId: string) => {
  const [project] = await db.select().from(projects).where(eq(projects.id, projectId));
  if (!project) throw new ApiError('NOT_FOUND', { ...missing('project').fields });
  return project;
};

const actorOf = (c: AppContext, tenantId: string) => ({
  ...noActor(tenantId),
  ip: connectingIp(c),
  requestId: c.var.requestId,
});

async function readMove(c: AppContext, db: Database, projectId: string) {
  const [row] = await db
    .select({ move: moves, job: jobs, dnsName: projects.dnsName })
    .from(moves)
    .innerJoin(projects, eq(projects.id, moves.projectId))
    .leftJoin(jobs, eq(jobs.id, moves.jobId))
    .where(eq(moves.projectId, projectId));
  if (!row) return undefined;
  const hostIds = [row.move.fromHostId, row.move.toHostId];
  const rows = await db.select().from(hosts).where(isOneOf(hosts.id, hostIds));
  return toMoveResponse(row.move, row.job, urlsChange(readSettings(c.env), row, rows));
}

/** @throws ApiError NOT_FOUND, VALIDATION_FAILED for the host that the project is on */
async function checkHost(db: Database, hostId: string, present: string): Promise<void> {
  found(await db.select().from(hosts).where(eq(hosts.id, hostId)));
  if (hostId === present)
    throw new ApiError('VALIDATION_FAILED', {
      details: [{ path: 'host_id', message: 'the project is on this host already' }],
    });
}

const PATH = '/platform/v1/projects/{project_id}/move';
const router = operations();

router.openapi(
  operation({
    access: 'platform',
    operationId: 'moveProject',
    method: 'post',
    path: PATH,
    summary: 'Move a project to another database host',
    description:
      '`main` can be written until the last moment, if each of its tables has a key. The other branches can only be read from their copy on. Then nobody can connect for about a second, and the project is on the other host, with its passwords, rules, leases and labels. Until then the move can be cancelled.',
    tags,
    request: { params: ProjectParams, body: jsonBody(NewMove) },
    responses: { 202: response('The move has begun.', Move) },
    failures: [
      'STORAGE_QUOTA_EXCEEDED',
      'PROJECT_NOT_ACTIVE',
      'PROJECT_MOVING',
      'PROJECT_BUSY',
      'FOLLOW_STATE',
      'WRITE_BLOCKED',
      'SNAPSHOTS_STAY',
      'HOST_FULL',
      'HOST_BUSY',
      'HOST_UNAVAILABLE',
      'HOST_UPGRADE_REQUIRED',
      'HOST_TIMEOUT',
      'DATABASE_SERVER_UNAVAILABLE',
    ],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { host_id: toHostId, branches, drop_snapshots: dropsSnapshots } = c.req.valid('json');
    const db = primaryOf(c);
    const project = await ofProject(db, projectId);
    await checkHost(db, toHostId, project.hostId);
    const request = {
      jobId: crypto.randomUUID(),
      project,
      toHostId,
      branches,
      dropsSnapshots,
      ofDrain: false,
      actor: actorOf(c, project.tenantId),
    };
    const { tenantId, createdBy, hostId, storageQuotaGib, id } = project;
    unwrap(
      await repeatIfLost(() =>
        coordinatorOf(c.env, projectId).moveProject({
          ...request,
          project: { tenantId, createdBy, hostId, storageQuotaGib, id },
        }),
      ),
    );
    const move = await readMove(c, db, projectId);
    if (!move) throw new ApiError('NOT_FOUND');
    return c.json(move, 202);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'getMove',
    method: 'get',
    path: PATH,
    summary: 'Show the last move of a project, or what one would be',
    tags,
    request: {
      params: ProjectParams,
      query: z.strictObject({
        host_id: z.uuid().optional().meta({
          description: 'Show what a move to this host would be. Default: the last move.',
        }),
        branches: Wanted.branches,
      }),
    },
    responses: { 200: response('The move.', Move) },
    failures: [
      'HOST_UNAVAILABLE',
      'HOST_UPGRADE_REQUIRED',
      'HOST_TIMEOUT',
      'HOST_BUSY',
      'DATABASE_SERVER_UNAVAILABLE',
    ],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { host_id: toHostId, branches: wanted } = c.req.valid('query');
    const db = primaryOf(c);
    const project = await ofProject(db, projectId);
    if (toHostId === undefined) {
      const move = await readMove(c, db, projectId);
      if (!move) throw new ApiError('NOT_FOUND');
      return c.json(move, 200);
    }
    await checkHost(db, toHostId, project.hostId);
    const size = { project_id: projectId };
    const { sizes } = unwrap(await callHostForClient(c.env, project.hostId, 'project.size', size));
    const branches = await movingBranches(db, projectId, sizes);
    const hostIds = [project.hostId, toHostId];
    const rows = await db.select().from(hosts).where(isOneOf(hosts.id, hostIds));
    return c.json(
      {
        state: 'planned' as const,
        from_host_id: project.hostId,
        to_host_id: toHostId,
        urls_change: urlsChange(readSettings(c.env), project, rows),
        branches: branches.map(({ id, name, bytes, isProtected }) => ({
          id,
          name,
          size_bytes: bytes,
          read_only: false,
          state: wanted === 'all' || isProtected ? ('waiting' as const) : ('left_out' as const),
        })),
        kept_until: null,
        job: null,
      },
      200,
    );
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'cancelMove',
    method: 'delete',
    path: PATH,
    summary: 'Cancel the move of a project',
    description:
      'Everything that the other host has of the project is dropped, and branches that could only be read can be written again. A move at its last step ends instead.',
    tags,
    request: { params: ProjectParams },
    responses: { 202: response('The job, which is undone.', Job) },
    failures: ['MOVE_FINISHING'],
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const project = await ofProject(primaryOf(c), projectId);
    const actor = actorOf(c, project.tenantId);
    const cancelled = await repeatIfLost(() =>
      coordinatorOf(c.env, projectId).cancelJob({ projectId, kind: 'project.move', actor }),
    );
    return c.json(toJobResponse(unwrap(cancelled)), 202);
  },
);

const Stays = z.strictObject({ project_id: z.uuid(), code: z.string(), message: z.string() });

const Drain = z
  .strictObject({
    host_id: z.uuid(),
    remaining: z.int().meta({ description: 'Projects that are still on the host.' }),
    moving: z.strictObject({ project_id: z.uuid(), job_id: z.uuid() }).nullable(),
    failed: z.array(Stays).meta({
      description: 'Projects that stay, with the failure. Drain again to try them again.',
    }),
    waiting: z.array(Stays).meta({
      description:
        'Why no project moves now, for up to twenty that have not failed: they are tried again by themselves. Empty while one moves or is about to.',
    }),
  })
  .meta({ id: 'Drain' });

async function readDrain(
  env: AppEnv['Bindings'],
  db: Database,
  hostId: string,
): Promise<z.output<typeof Drain>> {
  const state = await drainOf(db, hostId);
  if (!state) throw new ApiError('NOT_FOUND');
  const { remaining, moving, failed } = state;
  const present = new Set(remaining.map(({ id }) => id));
  return {
    host_id: hostId,
    remaining: remaining.length,
    moving: moving && { project_id: moving.projectId, job_id: moving.jobId },
    failed: Object.entries(failed).flatMap(([project_id, failure]) =>
      present.has(project_id) ? [{ project_id, ...failure }] : [],
    ),
    waiting: (await waitingOf(env, db, state)).map(({ projectId: project_id, ...failure }) => ({
      project_id,
      ...failure,
    })),
  };
}

const DRAIN = '/platform/v1/hosts/{host_id}/drain';

router.openapi(
  operation({
    access: 'platform',
    operationId: 'drainHost',
    method: 'post',
    path: DRAIN,
    summary: 'Move every project of a database host to other hosts of its region',
    description:
      'The host gets no new projects, and its projects move one at a time, the largest last. Repeat it to try those again that have failed. `draining` of the host ends it after the present move.',
    tags,
    request: { params: HostParams, body: optionalJsonBody(NewDrain) },
    responses: { 202: response('The drain has begun.', Drain) },
  }),
  async (c) => {
    const { host_id: hostId } = c.req.valid('param');
    const { branches, drop_snapshots: dropsSnapshots } = c.req.valid('json');
    const db = primaryOf(c);
    const thisHost = eq(hosts.id, hostId);
    found(await db.select().from(hosts).where(thisHost));
    const drain = { hostId, branches, dropsSnapshots, failed: {}, createdAt: new Date() };
    await db.batch([
      db.update(hosts).set({ draining: true }).where(thisHost),
      db.insert(drains).values(drain).onConflictDoUpdate({ target: drains.hostId, set: drain }),
    ]);
    await continueDrain(c.env, hostId);
    return c.json(await readDrain(c.env, db, hostId), 202);
  },
);

router.openapi(
  operation({
    access: 'platform',
    operationId: 'getDrain',
    method: 'get',
    path: DRAIN,
    summary: 'Show how far the drain of a database host is',
    tags,
    request: { params: HostParams },
    responses: { 200: response('The drain.', Drain) },
  }),
  async (c) => c.json(await readDrain(c.env, primaryOf(c), c.req.valid('param').host_id), 200),
);

export const moveRoutes = router;
