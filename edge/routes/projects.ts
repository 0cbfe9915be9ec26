import { and, eq, getTableColumns, isNotNull, sql } from 'drizzle-orm';
import { Hono } from 'hono';
import { z } from 'zod';
import {
  AppKey,
  DEFAULT_ENVIRONMENT,
  deriveAppKey,
  Environment,
  ProjectName,
} from '../../shared/project/project-name.ts';
import { type AppEnv, actorOf, databaseOf } from '../app-env.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { allow } from '../authentication/permissions.ts';
import { changesOf, type Database, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, hosts, projects } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { isLinked } from '../host-link/host-caller.ts';
import { readKeyUse, recordedUses, replay } from '../idempotency/idempotency-key.ts';
import { jobRecord } from '../jobs/job-record.ts';
import { cutPage, keyset, PageQuery } from '../pagination.ts';
import { coordinatorOf } from '../projects/coordinator-stub.ts';
import { countedBranches, found, visible, visibleProject } from '../projects/project-access.ts';
import { projectRecord } from '../projects/project-record.ts';
import { readBody, readId, readQuery } from '../requests.ts';
import type { Env } from '../settings.ts';
import { ORDER_WAIT_MS, orderResponse, succeeded } from './outcomes.ts';

const NewProject = z.strictObject({
  name: ProjectName,
  app_key: AppKey.optional(),
  env: Environment.default(DEFAULT_ENVIRONMENT),
});

const ProjectChange = z.strictObject({ name: ProjectName });

const KEY_SUFFIX_LENGTH = 4;
const KEY_ALPHABET = 'abcdefghijklmnopqrstuvwxyz0123456789';

const randomSuffix = () =>
  [...crypto.getRandomValues(new Uint8Array(KEY_SUFFIX_LENGTH))]
    .map((byte) => KEY_ALPHABET[byte % KEY_ALPHABET.length])
    .join('');

/** The linked host with the fewest projects. @throws ApiError HOST_UNAVAILABLE */
async function chooseHost(env: Env, db: Database): Promise<string> {
  const candidates = await db
    .select({ id: hosts.id })
    .from(hosts)
    .where(isNotNull(hosts.enrolledAt))
    .orderBy(sql`(select count(*) from ${projects} where host_id = ${hosts.id})`);
  for (const { id } of candidates) {
    if (await isLinked(env, id)) return id;
  }
  throw new ApiError('HOST_UNAVAILABLE');
}

export const projectRoutes = new Hono<AppEnv>()
  .post('/', async (c) => {
    allow(c.var.principal, 'project.create');
    const body = await readBody(c, NewProject);
    const db = databaseOf(c);
    const keyUse = await readKeyUse(c, c.var.principal, body);
    const replayed = replay(await recordedUses(db, keyUse, new Date()), keyUse);
    if (replayed) return replayed;
    const hostId = await chooseHost(c.env, db);
    const projectId = crypto.randomUUID();
    const outcome = await coordinatorOf(c.env, projectId).createProject(
      {
        jobId: crypto.randomUUID(),
        projectId,
        mainBranchId: crypto.randomUUID(),
        name: body.name,
        appKey: body.app_key ?? deriveAppKey(body.name, randomSuffix()),
        env: body.env,
        hostId,
        actor: actorOf(c),
        keyUse,
      },
      ORDER_WAIT_MS,
    );
    return orderResponse(c, outcome);
  })

  .get('/', async (c) => {
    const reach = allow(c.var.principal, 'project.read');
    const query = readQuery(c, PageQuery);
    const { orderBy, beyond } = keyset(projects, 'oldest_first', query);
    const rows = await databaseOf(c)
      .select({ ...getTableColumns(projects), hostName: hosts.name, branchCount: countedBranches })
      .from(projects)
      .innerJoin(hosts, eq(hosts.id, projects.hostId))
      .where(and(visible(c.var.principal, reach), beyond))
      .orderBy(...orderBy)
      .limit(query.limit + 1);
    const { page, next_cursor } = cutPage(rows, query);
    return c.json({ projects: page.map(projectRecord), next_cursor });
  })

  .get('/:project_id', async (c) => {
    const reach = allow(c.var.principal, 'project.read');
    const rows = await visibleProject(databaseOf(c), c.var.principal, reach, readId(c, 'project_id'));
    return c.json(projectRecord(found(rows)));
  })

  .patch('/:project_id', async (c) => {
    const reach = allow(c.var.principal, 'project.change');
    const projectId = readId(c, 'project_id');
    const db = databaseOf(c);
    const query = visibleProject(db, c.var.principal, reach, projectId);
    const project = found(await query);
    const { name } = await readBody(c, ProjectChange);
    const now = new Date();
    const about = { projectId, metadata: { from: project.name, to: name } };
    const theProject = and(eq(projects.id, projectId), eq(projects.tenantId, c.var.principal.tenantId));
    const stillThere = sql`exists (select 1 from ${projects} where ${theProject})`;
    const answers = await inOneBatch(db, [
      insertIf(db, auditEvents, auditEvent('project.renamed', actorOf(c), about, now), stillThere),
      db.update(projects).set({ name, updatedAt: now }).where(theProject),
    ]);
    if (changesOf(answers[1]) === 0) throw new ApiError('NOT_FOUND');
    return c.json(projectRecord({ ...project, name, updatedAt: now }));
  })

  .delete('/:project_id', async (c) => {
    const reach = allow(c.var.principal, 'project.change');
    const projectId = readId(c, 'project_id');
    const project = found(await visibleProject(databaseOf(c), c.var.principal, reach, projectId));
    const outcome = await coordinatorOf(c.env, projectId).deleteProject({
      id: crypto.randomUUID(),
      projectId,
      hostId: project.hostId,
      actor: actorOf(c),
    });
    return c.json(jobRecord(succeeded(outcome).job), 202);
  });
