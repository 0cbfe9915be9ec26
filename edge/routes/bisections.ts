import { and, eq } from 'drizzle-orm';
import { z } from 'zod';
import { creatorNetwork } from '../access/network-rule.ts';
import { FULL_CONTENT } from '../branches/branch.ts';
import { branchesOf, referencedBranch } from '../branches/branch-reference.ts';
import {
  checkDatabaseNames,
  checkPastTime,
  choicesOf,
  NewBranch,
  PastTime,
} from '../branches/branch-request.ts';
import { ofBranch } from '../branches/clone-source.ts';
import { withData } from '../branches/prepared-source.ts';
import { coordinatorOf } from '../coordinator/coordinator-rpc.ts';
import { jobs, projectBranches } from '../database/schema.ts';
import { ApiError, found, unwrap } from '../errors.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import { Job, toJobResponse } from '../jobs/job-resource.ts';
import { missing } from '../missing.ts';
import { actorOf, connectingIp } from '../pipeline/context.ts';
import {
  emptyResponse,
  jsonBody,
  operation,
  operations,
  optionalJsonBody,
  response,
} from '../pipeline/operation.ts';
import { databaseOf, primaryOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import { HOST_WORK_FAILURES } from './creations.ts';
import { HOST_FAILURES, inProject, ProjectParams, requireData } from './in-project.ts';

const tags = ['Branches'];
const BISECTIONS = '/api/v1/projects/{project_id}/bisections';
const ONE = `${BISECTIONS}/{bisection_id}` as const;

/** A probe ends by itself if the client that tries it is gone. */
const LEASE_SECONDS = 900;

const BisectionParams = ProjectParams.extend({ bisection_id: z.uuid().toLowerCase() });

const Start = z
  .strictObject({
    branch: z
      .string()
      .min(1)
      .max(100)
      .default('main')
      .meta({ description: 'The id or the name of a branch.' }),
    good: PastTime.meta({ description: 'A time when the branch was right.' }),
    bad: PastTime.meta({ description: 'A later time when it was wrong.' }),
  })
  .refine(({ good, bad }) => good < bad, { message: 'Provide a time after good.', path: ['bad'] })
  .meta({ example: { good: '2026-11-23T04:15:00Z', bad: '2026-11-23T10:15:00Z' } });

const Bisection = z
  .strictObject({
    id: z.uuid(),
    branch_id: z.uuid(),
    good: z.iso.datetime(),
    bad: z.iso.datetime(),
    ends_at: z.iso.datetime().meta({ description: 'The bisection is forgotten then.' }),
  })
  .meta({ id: 'Bisection' });

const Verdict = z
  .strictObject({
    verdict: z.enum(['good', 'bad', 'skip']).optional().meta({
      description:
        'Of the last probe; `skip`: it cannot be judged. Left out: the first probe, or the last one again.',
    }),
  })
  .meta({ example: { verdict: 'bad' } });

const Probe = z
  .strictObject({
    good: z.iso.datetime().meta({ description: 'The last time that was good.' }),
    from: z.iso.datetime(),
    until: z.iso.datetime().meta({ description: 'The first bad commit is between `from` and `until`.' }),
    first_bad: z.iso.datetime().nullable().meta({
      description:
        'The time of the commit after which the branch was wrong, once it is found. Null without a probe: each commit between `from` and `until` was skipped.',
    }),
    at: z.iso
      .datetime()
      .nullable()
      .meta({ description: 'The time of the probe; null: the bisection is over.' }),
    branch_name: z.string().nullable().meta({ description: 'The branch as it was then, with a lease.' }),
    job: Job.nullable().meta({ description: 'The job that makes that branch.' }),
  })
  .meta({ id: 'BisectionProbe' });

const FAILURES = [...HOST_FAILURES, 'PROJECT_NOT_ACTIVE', 'PROJECT_MOVING', 'TIME_NOT_RECOVERABLE'] as const;

const router = operations();

router.openapi(
  operation({
    access: 'credentials.read',
    operationId: 'startBisection',
    method: 'post',
    path: BISECTIONS,
    summary: 'Begin to look for the commit after which a branch was wrong',
    description:
      'Each probe is a branch as it was in the middle of the time that is left. A tenant has one bisection at a time, for an hour.',
    tags,
    request: { params: ProjectParams, body: jsonBody(Start) },
    responses: { 201: response('The bisection.', Bisection) },
    failures: FAILURES,
  }),
  async (c) => {
    const { project_id: projectId } = c.req.valid('param');
    const { branch: reference, good, bad } = c.req.valid('json');
    const [project, branches] = await inProject(c, projectId, (db) => [
      referencedBranch(db, projectId, reference, c.var.principal),
    ]);
    const branch = found(branches, missing('branch', reference));
    requireData(c, project, FULL_CONTENT);
    for (const at of [good, bad]) unwrap(checkPastTime(at, project, branch, new Date()));
    const id = crypto.randomUUID();
    const { ends_at } = unwrap(
      await callHostForClient(c.env, project.hostId, 'bisect.start', {
        bisection_id: id,
        project_id: projectId,
        branch_id: branch.id,
        good,
        bad,
      }),
    );
    return c.json({ id, branch_id: branch.id, good, bad, ends_at }, 201);
  },
);

router.openapi(
  operation({
    access: 'credentials.read',
    operationId: 'probeBisection',
    method: 'post',
    path: `${ONE}/probe`,
    summary: 'Judge the last probe of a bisection, and get the next one',
    description:
      'Makes a branch with a lease of the time in the middle. Try it once its job has ended, delete it, and send the verdict. The last response has the time of the commit, and no probe. It has neither if what is left was skipped.',
    tags,
    request: { params: BisectionParams, body: optionalJsonBody(Verdict) },
    responses: {
      200: response('The commit is found, or no other time can be judged.', Probe),
      202: response('The probe, whose branch is being made.', Probe),
    },
    failures: [
      ...FAILURES,
      ...HOST_WORK_FAILURES,
      'PROOF_FAILED',
      'BRANCH_LIMIT_REACHED',
      'DATABASE_NAME_TOO_LONG',
      'STORAGE_QUOTA_EXCEEDED',
      'FILE_LIMIT_REACHED',
      'RULE_LIMIT_REACHED',
      'SOURCE_NOT_ACTIVE',
    ],
  }),
  async (c) => {
    const { project_id: projectId, bisection_id: id } = c.req.valid('param');
    const { verdict = null } = c.req.valid('json');
    const [project] = await inProject(c, projectId, () => []);
    requireData(c, project, FULL_CONTENT);
    const about = { bisection_id: id, project_id: projectId, verdict };
    const { step } = unwrap(await callHostForClient(c.env, project.hostId, 'bisect.step', about));
    if (!step) throw ApiError.of(missing('bisection'));
    const { branch_id, probe: at, ...known } = step;
    if (at === null) return c.json({ ...known, at, branch_name: null, job: null }, 200);
    const db = databaseOf(c);
    const isOne = and(branchesOf(projectId, c.var.principal), eq(projectBranches.id, branch_id));
    const branch = found(await db.select().from(projectBranches).where(isOne));
    const jobId = crypto.randomUUID();
    // A probe that is asked for again gets another branch: the first may have failed.
    const name = `bisect-${jobId.slice(0, 8)}`;
    const creatorCidr = creatorNetwork(connectingIp(c));
    const wanted = NewBranch.parse({ branch_name: name, lease_seconds: LEASE_SECONDS });
    const choices = unwrap(choicesOf(wanted, creatorCidr, readSettings(c.env)));
    unwrap(checkDatabaseNames(project, [name]));
    const earlier = { data: 'full', keepTables: [], at, bisectionId: id } as const;
    const source = unwrap(withData(branch, ofBranch(branch), earlier, undefined, jobId));
    const request = {
      jobId,
      isBatch: false,
      branches: [{ id: crypto.randomUUID(), name }],
      project,
      source,
      creatorCidr,
      onExists: 'fail' as const,
      actor: actorOf(c),
      keyUse: null,
      ...choices,
    };
    unwrap(await coordinatorOf(c.env, projectId).createBranches(request, 0));
    const job = found(await primaryOf(c).select().from(jobs).where(eq(jobs.id, jobId)));
    return c.json({ ...known, at, branch_name: name, job: toJobResponse(job) }, 202);
  },
);

router.openapi(
  operation({
    access: 'credentials.read',
    operationId: 'endBisection',
    method: 'delete',
    path: ONE,
    summary: 'End a bisection',
    description:
      'Its copy is removed on the database host. The branches of its probes stay until their leases end.',
    tags,
    request: { params: BisectionParams },
    responses: { 204: emptyResponse('The bisection has ended.') },
    failures: HOST_FAILURES,
  }),
  async (c) => {
    const { project_id: projectId, bisection_id } = c.req.valid('param');
    const [project] = await inProject(c, projectId, () => []);
    const about = { bisection_id, project_id: projectId };
    const { ended } = unwrap(await callHostForClient(c.env, project.hostId, 'bisect.end', about));
    if (!ended) throw ApiError.of(missing('bisection'));
    return c.body(null, 204);
  },
);

export const bisectionRoutes = router;
