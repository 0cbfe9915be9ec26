import { and, asc, desc, eq, inArray, isNull, sql } from 'drizzle-orm';
import { Hono } from 'hono';
import { z } from 'zod';
import { BranchName } from '../../shared/branch/branch-name.ts';
import { statusesAllowing } from '../../shared/branch/branch-status.ts';
import { branchDatabaseName, DATABASE_NAME_MAX, maxSlugLength } from '../../shared/branch/database-name.ts';
import {
  DEFAULT_LIFESPAN,
  expiryOf,
  LIFESPAN_SECONDS,
  LifespanSpelling,
} from '../../shared/branch/lifespan.ts';
import { type AppEnv, actorOf, connectingIp, databaseOf } from '../app-env.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { allow } from '../authentication/permissions.ts';
import { branchRecord } from '../branches/branch-record.ts';
import { branchesOf, referencedBranch } from '../branches/branch-reference.ts';
import { credentialsRecord } from '../credentials/branch-credentials.ts';
import { changesOf, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, branchCredentials, hosts, projectBranches } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { readKeyUse, recordedUses, replay } from '../idempotency/idempotency-key.ts';
import { creatorNetwork } from '../network-rules/creator-rule.ts';
import { coordinatorOf } from '../projects/coordinator-stub.ts';
import { found, visibleProject } from '../projects/project-access.ts';
import { readBody, readId, readQuery } from '../requests.ts';
import { readSettings } from '../settings.ts';
import { ORDER_WAIT_MS, orderResponse, succeeded } from './outcomes.ts';

const NewBranch = z.strictObject({
  branch_name: BranchName,
  source_branch_id: z.uuid().toLowerCase().nullable().default(null),
  lifespan: LifespanSpelling.default(DEFAULT_LIFESPAN),
});

const BranchChange = z.strictObject({ lifespan: LifespanSpelling });

const Lookup = z.union(
  [z.strictObject({ name: z.string().max(100) }), z.strictObject({ id: z.uuid().toLowerCase() })],
  'give either name or id (a UUID)',
);

const CredentialsQuery = z.strictObject({ role: z.enum(['read_only']).optional() });

/** Routes of spec 4.3, under `/api/v1/projects/:project_id/branches`. */
export const branchRoutes = new Hono<AppEnv>()
  .post('/', async (c) => {
    const reach = allow(c.var.principal, 'branch.change');
    const projectId = readId(c, 'project_id');
    const db = databaseOf(c);
    const body = await readBody(c, NewBranch);
    const keyUse = await readKeyUse(c, c.var.principal, body);
    const wanted = body.source_branch_id
      ? eq(projectBranches.id, body.source_branch_id)
      : eq(projectBranches.isDefault, true);
    const [projectRows, [source], uses] = await db.batch([
      visibleProject(db, c.var.principal, reach, projectId),
      db
        .select()
        .from(projectBranches)
        .where(and(branchesOf(projectId), wanted)),
      recordedUses(db, keyUse, new Date()),
    ]);
    const project = found(projectRows);
    const replayed = replay(uses, keyUse);
    if (replayed) return replayed;
    const { length } = branchDatabaseName(project.appKey, project.env, body.branch_name);
    if (length > DATABASE_NAME_MAX) {
      const max_slug_length = maxSlugLength(project.appKey, project.env);
      throw new ApiError('DATABASE_NAME_TOO_LONG', { length, max_slug_length });
    }
    if (!source) throw new ApiError('NOT_FOUND');
    const outcome = await coordinatorOf(c.env, projectId).createBranch(
      {
        jobId: crypto.randomUUID(),
        branchId: crypto.randomUUID(),
        project,
        source,
        branchName: body.branch_name,
        lifespan: body.lifespan,
        creatorCidr: creatorNetwork(connectingIp(c)),
        actor: actorOf(c),
        keyUse,
      },
      ORDER_WAIT_MS,
    );
    return orderResponse(c, outcome);
  })

  .get('/', async (c) => {
    const reach = allow(c.var.principal, 'branch.read');
    const projectId = readId(c, 'project_id');
    readQuery(c, z.strictObject({}));
    const db = databaseOf(c);
    const [projectRows, branches] = await db.batch([
      visibleProject(db, c.var.principal, reach, projectId),
      db
        .select()
        .from(projectBranches)
        .where(branchesOf(projectId))
        .orderBy(desc(projectBranches.isDefault), asc(projectBranches.createdAt), asc(projectBranches.id)),
    ]);
    found(projectRows);
    return c.json({ branches: branches.map(branchRecord) });
  })

  .get('/lookup', async (c) => {
    const reach = allow(c.var.principal, 'branch.read');
    const projectId = readId(c, 'project_id');
    const query = readQuery(c, Lookup);
    const db = databaseOf(c);
    const [projectRows, matches] = await db.batch([
      visibleProject(db, c.var.principal, reach, projectId),
      db
        .select()
        .from(projectBranches)
        .where(
          and(
            branchesOf(projectId),
            'id' in query ? eq(projectBranches.id, query.id) : eq(projectBranches.branchName, query.name),
          ),
        ),
    ]);
    found(projectRows);
    return c.json({ matches: matches.map(branchRecord), is_duplicate: matches.length > 0 });
  })

  .get('/:branch_ref/credentials', async (c) => {
    const reach = allow(c.var.principal, 'credentials.read');
    const projectId = readId(c, 'project_id');
    const { role } = readQuery(c, CredentialsQuery);
    const db = databaseOf(c);
    const [projectRows, branchRows] = await db.batch([
      visibleProject(db, c.var.principal, reach, projectId),
      referencedBranch(db, projectId, c.req.param('branch_ref')),
    ]);
    const project = found(projectRows);
    const branch = found(branchRows);
    if (branch.status !== 'active') throw new ApiError('BRANCH_NOT_ACTIVE');
    const now = new Date();
    const about = { projectId, branchId: branch.id, metadata: { role: role ?? 'default' } };
    const [credentials, hostRows] = await db.batch([
      db.select().from(branchCredentials).where(eq(branchCredentials.branchId, branch.id)),
      db.select().from(hosts).where(eq(hosts.id, project.hostId)),
      db.insert(auditEvents).values(auditEvent('branch.credentials.viewed', actorOf(c), about, now)),
    ]);
    // A deletion came between the two reads.
    found(credentials);
    const keys = readSettings(c.env).CREDENTIAL_KEYS;
    c.header('Cache-Control', 'no-store');
    return c.json(await credentialsRecord(keys, branch, credentials, found(hostRows), role ?? 'default'));
  })

  .patch('/:branch_id', async (c) => {
    const reach = allow(c.var.principal, 'branch.change');
    const projectId = readId(c, 'project_id');
    const branchId = readId(c, 'branch_id');
    const db = databaseOf(c);
    const [projectRows, branchRows] = await db.batch([
      visibleProject(db, c.var.principal, reach, projectId),
      referencedBranch(db, projectId, branchId),
    ]);
    found(projectRows);
    const branch = found(branchRows);
    const { lifespan } = await readBody(c, BranchChange);
    if (branch.protected) throw new ApiError('BRANCH_PROTECTED');
    const now = new Date();
    const change = {
      lifespan,
      expiresAt: expiryOf(lifespan, now),
      ttlSeconds: LIFESPAN_SECONDS[lifespan],
      status: 'active' as const,
      updatedAt: now,
    };
    const extendable = and(
      eq(projectBranches.id, branchId),
      eq(projectBranches.tenantId, c.var.principal.tenantId),
      inArray(projectBranches.status, statusesAllowing('extend')),
      isNull(projectBranches.deletedAt),
    );
    const about = { projectId, branchId, metadata: { from: branch.lifespan, to: lifespan } };
    const event = auditEvent('branch.lifespan.changed', actorOf(c), about, now);
    const answers = await inOneBatch(db, [
      insertIf(db, auditEvents, event, sql`exists (select 1 from ${projectBranches} where ${extendable})`),
      db.update(projectBranches).set(change).where(extendable),
    ]);
    if (changesOf(answers[1]) === 0) throw new ApiError('BRANCH_NOT_ACTIVE');
    return c.json(branchRecord({ ...branch, ...change }));
  })

  .delete('/:branch_id', async (c) => {
    const reach = allow(c.var.principal, 'branch.change');
    const projectId = readId(c, 'project_id');
    const branchId = readId(c, 'branch_id');
    const project = found(await visibleProject(databaseOf(c), c.var.principal, reach, projectId));
    const outcome = await coordinatorOf(c.env, projectId).deleteBranch({
      id: crypto.randomUUID(),
      projectId,
      branchId,
      hostId: project.hostId,
      actor: actorOf(c),
    });
    const { job } = succeeded(outcome);
    const deleted_at = job.createdAt.toISOString();
    return c.json({ id: branchId, status: 'deleted', deleted_at, job_id: job.id }, 202);
  });
