import { eq, sql } from 'drizzle-orm';
import type { BranchRole } from '../../shared/branch/login.ts';
import { closeWithProject, confirmAccess, withdrawAccess } from '../access/access-revision.ts';
import { type Access, accessOf, accessReads } from '../access/send-access.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { passwordOf } from '../credentials/branch-credentials.ts';
import { scramVerifier } from '../credentials/password.ts';
import { insertIf, type Statement } from '../database/database.ts';
import {
  auditEvents,
  branchCredentials,
  networkRules,
  projectBranches,
  projects,
} from '../database/schema.ts';
import { type SagaContext, saga } from '../jobs/saga.ts';
import type { ProjectRow } from '../projects/project-resource.ts';
import { type BranchRow, toCreatedBranchResponse } from './branch-resource.ts';
import { isAllowed, transition, whereAllowed } from './branch-transition.ts';

/** How long a clone waits for transactions of the source branch to end before it fails with `SOURCE_BUSY`. */
const BUSY_WAIT_MS = 3000;

type SealedRow = typeof branchCredentials.$inferSelect;

/** The subject of a creation, read again at each attempt. */
export interface Creation {
  project: ProjectRow;
  branch: BranchRow;
  credentials: SealedRow[];
  access: Access;
}

/** The parameters that identify the branch on the host. */
const identity = ({ job }: SagaContext, { project, branch }: Creation) => ({
  job_id: job.id,
  project_id: project.id,
  branch_id: branch.id,
  database: branch.databaseName,
});

export async function loadCreation({ db, job, settings }: SagaContext): Promise<Creation | null> {
  const branchId = job.branchId ?? '';
  const [[branch], credentials, [project], ...restrictions] = await db.batch([
    db.select().from(projectBranches).where(eq(projectBranches.id, branchId)),
    db.select().from(branchCredentials).where(eq(branchCredentials.branchId, branchId)),
    ...accessReads(db, job.projectId),
  ]);
  if (!project || branch?.status !== 'creating') return null;
  const access = await accessOf(settings.CREDENTIAL_KEYS, project, ...restrictions);
  return { project, branch, credentials, access };
}

async function prepare(context: SagaContext, creation: Creation) {
  const verifier = async (role: BranchRole) =>
    scramVerifier(await passwordOf(context.settings.CREDENTIAL_KEYS, creation.credentials, role));
  const [owner, read_write, read_only] = await Promise.all([
    verifier('owner'),
    verifier('read_write'),
    verifier('read_only'),
  ]);
  await context.callHost('branch.prepare', {
    ...identity(context, creation),
    verifiers: { owner, read_write, read_only },
    access: creation.access,
  });
}

const clone = (context: SagaContext, creation: Creation) =>
  context.callHost('branch.clone', {
    ...identity(context, creation),
    source: creation.branch.isDefault ? null : creation.branch.sourceDatabase,
    busy_wait: BUSY_WAIT_MS,
  });

const publish = (context: SagaContext, creation: Creation) =>
  context.callHost('branch.finalize', identity(context, creation));

const prove = async (context: SagaContext, creation: Creation) =>
  context.callHost('branch.prove', {
    ...identity(context, creation),
    password: await passwordOf(context.settings.CREDENTIAL_KEYS, creation.credentials, 'read_write'),
  });

/**
 * The steps that create the database of any branch, `main` included. The host prepares logins, rules and the pooler
 * entry in parallel with the clone, because the pooler's reload takes half as long as the clone.
 */
export const CREATION_STEPS = [
  [
    { name: 'prepare', run: prepare },
    { name: 'clone', run: clone },
  ],
  [{ name: 'publish', run: publish }],
  [{ name: 'prove', run: prove }],
] as const;

/** Makes a proved branch active and audits it, unless the branch was deleted meanwhile. */
export function activation(
  { db, job }: SagaContext,
  { project, branch, access }: Creation,
  now: Date,
): Statement[] {
  const thisBranch = eq(projectBranches.id, branch.id);
  const name = branch.isDefault ? 'project.created' : 'branch.created';
  const actor = { ...job.input.actor, tenantId: project.tenantId };
  const event = auditEvent(
    name,
    actor,
    {
      id: job.id,
      projectId: project.id,
      branchId: branch.id,
      metadata: { branch_name: branch.branchName, database: branch.databaseName },
    },
    now,
  );
  const ofProject = db
    .select({ tenantId: projects.tenantId })
    .from(projects)
    .where(eq(projects.id, project.id));
  return [
    insertIf(db, auditEvents, event, isAllowed('proved', thisBranch)),
    // The user may have moved to another tenant since the job was loaded; the event belongs to the project's tenant
    // (specification 5.9).
    db
      .update(auditEvents)
      .set({ tenantId: sql`${ofProject}` })
      .where(eq(auditEvents.id, job.id)),
    confirmAccess(db, project.id, access.revision),
    closeWithProject(db, project.id, isAllowed('proved', thisBranch)),
    transition(db, 'proved', thisBranch, now),
  ];
}

/** True after `activation`, unless the branch was deleted before. */
export const isActive = ({ branch }: Creation) =>
  sql`exists (select 1 from ${projectBranches} where id = ${branch.id} and status = 'active')`;

/** Specification 4.3, "Branch creation, in order"; `docs/architecture.md` explains why the order here differs. */
export const createBranchJob = saga<Creation>({
  steps: CREATION_STEPS,
  load: loadCreation,
  complete: activation,
  completed: isActive,
  response: ({ branch }) => ({ status: 201, body: toCreatedBranchResponse({ ...branch, status: 'active' }) }),
  undo: {
    run: async (context) => {
      const { db, job, callHost } = context;
      const [branch] = await db
        .select({ database: projectBranches.databaseName })
        .from(projectBranches)
        .where(eq(projectBranches.id, job.branchId ?? ''));
      if (!branch) return;
      await callHost('branch.drop', {
        job_id: job.id,
        project_id: job.projectId,
        branch_id: job.branchId ?? '',
        database: branch.database,
      });
    },
    record: ({ db, job }, refused, now) => {
      const branchId = job.branchId ?? '';
      const thisBranch = eq(projectBranches.id, branchId);
      const withdrawal = withdrawAccess(db, job.projectId, sql`true`);
      if (refused) return [withdrawal, db.delete(projectBranches).where(whereAllowed('gave_up', thisBranch))];
      return [
        withdrawal,
        db.delete(branchCredentials).where(eq(branchCredentials.branchId, branchId)),
        db.delete(networkRules).where(eq(networkRules.branchId, branchId)),
        transition(db, 'gave_up', thisBranch, now),
      ];
    },
  },
});
