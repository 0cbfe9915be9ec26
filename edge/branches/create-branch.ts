import { and, eq, type SQL, sql } from 'drizzle-orm';
import { BRANCH_TRANSITIONS } from '../../shared/branch/branch-status.ts';
import type { BranchRole } from '../../shared/branch/login.ts';
import { closeWithProject, confirmAccess, withdrawAccess } from '../access/access-revision.ts';
import { type Access, accessOf, accessReads } from '../access/send-access.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { inTenantOfProject } from '../audit/tenant-of-project.ts';
import { passwordOf } from '../credentials/branch-credentials.ts';
import { scramVerifier } from '../credentials/password.ts';
import { insertAllIf, isOneOf, type Statement } from '../database/database.ts';
import { auditEvents, branchCredentials, networkRules, projectBranches } from '../database/schema.ts';
import { branchIdsOf } from '../jobs/job-store.ts';
import { type Saga, type SagaContext, saga } from '../jobs/saga.ts';
import type { ProjectRow } from '../projects/project-resource.ts';
import { type BranchRow, toCreatedBranchResponse } from './branch-resource.ts';
import { transition, whereAllowed } from './branch-transition.ts';
import { leaseEnd } from './leases.ts';

/** How long a clone waits for transactions of the source branch to end before it fails with `SOURCE_BUSY`. */
export const BUSY_WAIT_MS = 3000;

type SealedRow = typeof branchCredentials.$inferSelect;

/** A branch that is being created, read again at each attempt. */
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

/** The branches of the job in their order; null if one of them is not being created any more. */
export async function loadCreations({ db, job, settings }: SagaContext): Promise<Creation[] | null> {
  const ids = branchIdsOf(job);
  const [branches, credentials, [project], ...restrictions] = await db.batch([
    db.select().from(projectBranches).where(isOneOf(projectBranches.id, ids)),
    db.select().from(branchCredentials).where(isOneOf(branchCredentials.branchId, ids)),
    ...accessReads(db, job.projectId),
  ]);
  const creating = ids.flatMap(
    (id) => branches.find((branch) => branch.id === id && branch.status === 'creating') ?? [],
  );
  if (!project || creating.length < ids.length) return null;
  const access = await accessOf(settings.CREDENTIAL_KEYS, project, ...restrictions);
  return creating.map((branch) => ({
    project,
    branch,
    credentials: credentials.filter(({ branchId }) => branchId === branch.id),
    access,
  }));
}

export const loadCreation = async (context: SagaContext): Promise<Creation | null> =>
  (await loadCreations(context))?.[0] ?? null;

/** The verifiers of a new branch's three logins. */
export async function verifiersOf({ settings }: SagaContext, { credentials }: Creation) {
  const verifier = async (role: BranchRole) =>
    scramVerifier(await passwordOf(settings.CREDENTIAL_KEYS, credentials, role));
  const [owner, read_write, read_only] = await Promise.all([
    verifier('owner'),
    verifier('read_write'),
    verifier('read_only'),
  ]);
  return { owner, read_write, read_only };
}

/** The password with which a new branch proves itself. */
export const proofPassword = ({ settings }: SagaContext, { credentials }: Creation) =>
  passwordOf(settings.CREDENTIAL_KEYS, credentials, 'read_write');

const prepare = async (context: SagaContext, creation: Creation) =>
  context.callHost('branch.prepare', {
    ...identity(context, creation),
    verifiers: await verifiersOf(context, creation),
    access: creation.access,
  });

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
    password: await proofPassword(context, creation),
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

const idsOf = (creations: readonly Creation[]) => creations.map(({ branch }) => branch.id);

const countOf = (ids: readonly string[], condition: SQL | undefined) =>
  sql`(select count(*) from ${projectBranches} where ${and(isOneOf(projectBranches.id, ids), condition)})`;

/** Makes proved branches active and audits them, unless one was deleted meanwhile: then nothing changes. */
export const activation = (
  context: SagaContext,
  creations: readonly [Creation, ...Creation[]],
  now: Date,
): Statement[] => activate(context, creations, now, 'branch.created');

/** As `activation`, with another audit event for branches other than `main`. */
export function activate(
  { db, job }: SagaContext,
  creations: readonly [Creation, ...Creation[]],
  now: Date,
  event: 'branch.created' | 'branch.restored',
): Statement[] {
  const [{ project, access }] = creations;
  const ids = idsOf(creations);
  const allAllowed = sql`${countOf(ids, whereAllowed('proved', undefined))} = ${ids.length}`;
  const actor = { ...job.input.actor, tenantId: project.tenantId };
  const events = creations.map(({ branch }) => {
    const name = branch.isDefault ? 'project.created' : event;
    const networks = access.rules.flatMap(({ branch_id, cidr }) => (branch_id === branch.id ? [cidr] : []));
    const metadata = { branch_name: branch.branchName, database: branch.databaseName, networks };
    return auditEvent(
      name,
      actor,
      // A branch can be restored more than once.
      {
        id: event === 'branch.created' ? branch.id : job.id,
        projectId: project.id,
        branchId: branch.id,
        metadata,
      },
      now,
    );
  });
  return [
    insertAllIf(db, auditEvents, events, allAllowed),
    inTenantOfProject(
      db,
      project.id,
      events.map(({ id }) => id),
    ),
    confirmAccess(db, project.id, access.revision),
    closeWithProject(db, project.id, allAllowed),
    db
      .update(projectBranches)
      .set({ status: BRANCH_TRANSITIONS.proved.to, leaseEndsAt: leaseEnd(now), updatedAt: now })
      .where(and(isOneOf(projectBranches.id, ids), allAllowed)),
  ];
}

/** True after `activation`, unless a branch was deleted before. */
export const areActive = (creations: readonly Creation[]) =>
  sql`${countOf(idsOf(creations), eq(projectBranches.status, 'active'))} = ${creations.length}`;

/** The branch as the response to its creation shows it. */
export const toActiveBranchResponse = ({ branch }: Creation, now: Date) =>
  toCreatedBranchResponse({
    ...branch,
    status: 'active',
    leaseEndsAt: branch.leaseSeconds === null ? null : new Date(now.getTime() + branch.leaseSeconds * 1000),
  });

/**
 * Removes what a creation made of its branches.
 * @param buildIdOf the id under which the host builds a branch of the job
 * @param isAgain the branches existed before, so the host can have them as another job made them
 */
export const undoCreation = (
  buildIdOf: (jobId: string, branchId: string) => string,
  { isAgain } = { isAgain: false },
): NonNullable<Saga<unknown>['undo']> => ({
  run: async ({ db, job, callHost }) => {
    const branches = await db
      .select({ id: projectBranches.id, database: projectBranches.databaseName })
      .from(projectBranches)
      .where(isOneOf(projectBranches.id, branchIdsOf(job)));
    const drop = ({ id, database }: (typeof branches)[number]) =>
      callHost('branch.drop', {
        job_id: buildIdOf(job.id, id),
        project_id: job.projectId,
        branch_id: id,
        database,
        made_by: isAgain ? job.id : null,
      });
    await Promise.all(branches.map(drop));
  },
  record: ({ db, job }, refused, now) => {
    const ids = branchIdsOf(job);
    const theBranches = isOneOf(projectBranches.id, ids);
    const withdrawal = withdrawAccess(db, job.projectId, sql`true`);
    if (refused) return [withdrawal, db.delete(projectBranches).where(whereAllowed('gave_up', theBranches))];
    return [
      withdrawal,
      db.delete(branchCredentials).where(isOneOf(branchCredentials.branchId, ids)),
      db.delete(networkRules).where(isOneOf(networkRules.branchId, ids)),
      transition(db, 'gave_up', theBranches, now),
    ];
  },
});

/** Specification 4.3, "Branch creation, in order"; `docs/architecture.md` explains why the order here differs. */
export const createBranchJob = saga<Creation>({
  steps: CREATION_STEPS,
  load: loadCreation,
  complete: (context, creation, now) => activation(context, [creation], now),
  completed: (creation) => areActive([creation]),
  response: (creation, now) => ({
    status: 201,
    body: { ...toActiveBranchResponse(creation, now), created: true },
  }),
  undo: undoCreation((jobId) => jobId),
});
