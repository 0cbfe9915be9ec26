import { and, asc, desc, eq, inArray } from 'drizzle-orm';
import { z } from 'zod';
import { type BranchStatus, COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import { storedSnapshotsOf } from '../branches/snapshot.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { isLive } from '../database/conditions.ts';
import type { Database } from '../database/database.ts';
import { projectBranches, snapshots } from '../database/schema.ts';
import { ApiError, unwrap } from '../errors.ts';
import { isProjectHostLinked } from '../hosts/host-client.ts';
import { repeatIfLost } from '../lost-object.ts';
import type { Recorded } from '../monitoring/measurements.ts';
import { METRIC_NAMES } from '../monitoring/metrics.ts';
import {
  type Measured,
  MetricOfBranches,
  MetricsSeries,
  MetricsSummary,
  metricOfBranches,
  metricsSeries,
  metricsSummary,
  POINTS_OF_EACH_MAX,
  ProjectUsage,
  projectUsage,
  rangeOf,
  SeriesRange,
} from '../monitoring/metrics-resource.ts';
import { drillsOf, RecoveryDrills, toDrills } from '../monitoring/recovery-drills.ts';
import type { AppContext } from '../pipeline/context.ts';
import { operation, operations, response } from '../pipeline/operation.ts';
import { responseHeaders } from '../pipeline/response-headers.ts';
import type { ProjectView } from '../tenancy/project-access.ts';
import {
  BranchRefParams,
  branchOf,
  HOST_FAILURES,
  inBranch,
  inProject,
  ProjectParams,
  StreamQuery,
} from './in-project.ts';

const tags = ['Metrics'];

const SummaryQuery = z.strictObject({
  include: z.enum(['alerts']).optional().meta({
    description: 'Adds the recommended alert thresholds that the current values cross.',
  }),
});

const SeriesQuery = z.strictObject({
  metric: z.enum(METRIC_NAMES).optional().meta({ description: 'Only this metric. Default: all metrics.' }),
  ...SeriesRange,
});

const AllSeriesQuery = z.strictObject({
  metric: z.enum(METRIC_NAMES),
  ...SeriesRange,
});

/** The header that browsers send. A malformed id is ignored, so that the stream begins with the last measurement. */
const StreamHeaders = z.object({
  'last-event-id': z
    .string()
    .default('')
    .transform((text) => Date.parse(text) || null)
    .meta({
      description:
        'The id of the last event that the client received. Missed measurements are replayed first, one per minute, up to 60.',
      example: '2026-01-31T12:00:00.000Z',
    }),
});

const EVENTS = {
  description:
    'A stream of `measurement` events. `id` is the time of the measurement, `data` is `{ "project_id", "observed_at", "branches": [{ "branch_id", …metrics }] }`. The last measurement is sent immediately. Comments keep the connection open. The stream ends when the token expires or the caller loses access to the project.',
  headers: responseHeaders(),
  content: { 'text/event-stream': { schema: z.string() } },
};

type Monitor = ReturnType<typeof coordinatorOf>['monitor'];

/**
 * Read concurrently with D1. Nothing of it may be sent before `inProject` has checked the caller's
 * permission.
 */
const askMonitor = <R>(
  c: AppContext,
  projectId: string,
  call: (monitor: Monitor) => Promise<R>,
): Promise<R> => repeatIfLost(() => call(coordinatorOf(c.env, projectId).monitor));

const branchesIn = (db: Database, projectId: string, statuses: readonly BranchStatus[]) =>
  db
    .select({
      id: projectBranches.id,
      branchName: projectBranches.branchName,
      databaseName: projectBranches.databaseName,
      ownBytes: projectBranches.ownBytes,
      sharedBytes: projectBranches.sharedBytes,
    })
    .from(projectBranches)
    .where(and(eq(projectBranches.projectId, projectId), isLive, inArray(projectBranches.status, statuses)))
    .orderBy(desc(projectBranches.isDefault), asc(projectBranches.createdAt), asc(projectBranches.id));

/**
 * Awaits the records and the measurements of a project, both already requested: one trip for a known project.
 */
async function withLink<Read extends [ProjectView, ...unknown[]], R extends Recorded>(
  c: AppContext,
  projectId: string,
  reading: Promise<Read>,
  recording: Promise<R>,
): Promise<[Read, R & Measured]> {
  const [read, recorded, linked] = await Promise.all([
    reading,
    recording,
    isProjectHostLinked(
      c.env,
      projectId,
      reading.then(([project]) => project),
    ),
  ]);
  return [read, { ...recorded, linked, stale: recorded.overdue || !linked }];
}

const stream = {
  access: 'metrics.read',
  method: 'get',
  tags,
  responses: { 200: EVENTS },
  failures: ['STREAM_LIMIT_REACHED'],
} as const;

/** To be called after the permission check, because the project's object keeps the stream open. */
async function streamed(
  c: AppContext,
  projectId: string,
  branchId: string | null,
  { seconds }: z.output<typeof StreamQuery>,
  { 'last-event-id': since }: z.output<typeof StreamHeaders>,
) {
  // A response to HEAD has no body, so there is no stream to keep open.
  const wanted = { branchId, seconds: c.req.method === 'HEAD' ? 0 : seconds, since };
  const client = { id: crypto.randomUUID(), principal: c.var.principal };
  const stream = unwrap(
    await askMonitor(c, projectId, (monitor) => monitor.stream(projectId, client, wanted)),
  );
  c.header('Content-Type', 'text/event-stream');
  return c.body(stream, 200);
}

const router = operations();

router.openapi(
  operation({
    access: 'metrics.read',
    gives: 'record',
    operationId: 'getMetricsSummary',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/metrics/summary',
    summary: 'Get the current metrics of a branch',
    description: 'Size, connections and cache hit ratio of the branch, and the storage usage of its project.',
    tags,
    request: { params: BranchRefParams, query: SummaryQuery },
    responses: { 200: response('The current metrics.', MetricsSummary) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { include } = c.req.valid('query');
    const reading = inBranch(c, c.req.valid('param'), (db) => [branchesIn(db, projectId, COUNTED_STATUSES)]);
    const recording = askMonitor(c, projectId, (monitor) => monitor.last());
    const [[project, branch, counted], measured] = await withLink(c, projectId, reading, recording);
    return c.json(metricsSummary(project, branch, counted, measured, include === 'alerts'), 200);
  },
);

router.openapi(
  operation({
    access: 'metrics.read',
    gives: 'record',
    operationId: 'getMetrics',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/metrics',
    summary: 'Get the metrics of a branch over time',
    description:
      'Each point has the value and the timestamp of the last measurement within its step. `active_connections` is the maximum and `cache_hit_ratio` the mean of the step. Counters start at 0 when the branch is created and never decrease.',
    tags,
    request: { params: BranchRefParams, query: SeriesQuery },
    responses: { 200: response('One series per metric, oldest value first.', MetricsSeries) },
  }),
  async (c) => {
    const { project_id: projectId, branch_ref: reference } = c.req.valid('param');
    const { metric, ...wanted } = c.req.valid('query');
    const range = rangeOf(wanted, Date.now());
    if ('message' in range) throw new ApiError('VALIDATION_FAILED', { details: [range] });
    const seriesOf = (branch: string) => askMonitor(c, projectId, (monitor) => monitor.series(branch, range));
    const reading = inBranch(c, c.req.valid('param'), () => []);
    const guessing = seriesOf(reference);
    const [[, { id }], guessed] = await withLink(c, projectId, reading, guessing);
    // Another branch can have got the name since the last measurement.
    const { points } = guessed.branchId === id ? guessed : await seriesOf(id);
    return c.json(metricsSeries(range, metric ? [metric] : METRIC_NAMES, { ...guessed, points }), 200);
  },
);

router.openapi(
  operation({
    access: 'metrics.read',
    operationId: 'getMetricOfBranches',
    method: 'get',
    path: '/api/v1/projects/{project_id}/metrics',
    summary: 'Get one metric of all active branches over time',
    description: `As the metrics of a branch, with at most ${POINTS_OF_EACH_MAX} points for each branch.`,
    tags,
    request: { params: ProjectParams, query: AllSeriesQuery },
    responses: { 200: response('One series per branch, `main` first.', MetricOfBranches) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { metric, ...wanted } = c.req.valid('query');
    const range = rangeOf(wanted, Date.now(), POINTS_OF_EACH_MAX);
    if ('message' in range) throw new ApiError('VALIDATION_FAILED', { details: [range] });
    const reading = inProject(c, projectId, (db) => [branchesIn(db, projectId, ['active'])]);
    const recording = askMonitor(c, projectId, (monitor) => monitor.metricOfBranches(metric, range));
    const [[, active], recorded] = await withLink(c, projectId, reading, recording);
    return c.json(metricOfBranches(range, metric, active, recorded), 200);
  },
);

router.openapi(
  operation({
    access: 'metrics.read',
    operationId: 'getUsage',
    method: 'get',
    path: '/api/v1/projects/{project_id}/usage',
    summary: 'Get the storage usage of a project',
    description:
      'Creating, active and expired branches count against the storage quota, with the sizes of their databases.',
    tags,
    request: { params: ProjectParams },
    responses: {
      200: response(
        'The usage of the project, each branch that counts against its quota, each snapshot and each checkpoint.',
        ProjectUsage,
      ),
    },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const reading = inProject(c, projectId, (db) => [
      branchesIn(db, projectId, COUNTED_STATUSES),
      db.select().from(snapshots).where(storedSnapshotsOf(projectId, c.var.principal)),
    ]);
    const recording = askMonitor(c, projectId, (monitor) => monitor.last());
    const [[project, counted, taken], measured] = await withLink(c, projectId, reading, recording);
    return c.json(projectUsage(project, counted, taken, measured), 200);
  },
);

router.openapi(
  operation({
    ...stream,
    operationId: 'streamProjectMetrics',
    path: '/api/v1/projects/{project_id}/metrics/stream',
    summary: 'Stream the measurements of a project as server-sent events',
    request: { params: ProjectParams, query: StreamQuery, headers: StreamHeaders },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    await inProject(c, projectId, () => []);
    return streamed(c, projectId, null, c.req.valid('query'), c.req.valid('header'));
  },
);

router.openapi(
  operation({
    ...stream,
    gives: 'record',
    operationId: 'streamBranchMetrics',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/metrics/stream',
    summary: 'Stream the measurements of a branch as server-sent events',
    request: { params: BranchRefParams, query: StreamQuery, headers: StreamHeaders },
  }),
  async (c) => {
    const [project, branch] = await inBranch(c, c.req.valid('param'), () => []);
    return streamed(c, project.id, branch.id, c.req.valid('query'), c.req.valid('header'));
  },
);

router.openapi(
  operation({
    access: 'branch.read',
    machines: 'of_branches',
    gives: 'record',
    operationId: 'countSessions',
    method: 'get',
    path: '/api/v1/projects/{project_id}/branches/{branch_ref}/sessions',
    summary: 'Count the direct sessions of a branch',
    description:
      'A clone ends the sessions that clients have with PostgreSQL directly. Clients of the pooled URL wait for a moment, and a clone of a snapshot ends no session.',
    tags,
    request: { params: BranchRefParams },
    responses: {
      200: response(
        'The sessions of this moment.',
        z.strictObject({ direct_sessions: z.int().nonnegative().meta({ example: 3 }) }),
      ),
    },
    failures: HOST_FAILURES,
  }),
  async (c) => {
    const { database, call } = await branchOf(c, c.req.valid('param'), 'read');
    const { direct } = await call('branch.sessions', database);
    return c.json({ direct_sessions: direct }, 200);
  },
);

router.openapi(
  operation({
    access: 'metrics.read',
    operationId: 'listRecoveryDrills',
    method: 'get',
    path: '/api/v1/projects/{project_id}/recovery-drills',
    summary: 'List the drills of recoveries, newest first',
    description:
      'Once a week the database host recovers `main` to a time of which it has recorded counts and digests of rows, compares, and drops what it has recovered. No value of a row is in a drill.',
    tags,
    request: { params: ProjectParams },
    responses: { 200: response('The drills of the last year.', RecoveryDrills) },
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const [project, rows] = await inProject(c, projectId, (db) => [drillsOf(db, projectId)]);
    return c.json(toDrills(project, rows, new Date()), 200);
  },
);

export const metricsRoutes = router;
