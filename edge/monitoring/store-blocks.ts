import { and, eq, inArray, isNull, sql } from 'drizzle-orm';
import type { ProjectBlocks } from '../../shared/block.ts';
import { noActor } from '../audit/actor.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { StoredBlock } from '../branches/branch-blocks.ts';
import { type Database, hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { auditEvents, projectBranches, projects, users } from '../database/schema.ts';
import type { ProjectRow } from '../projects/project-resource.ts';

/** A project whose branches can be blocked. */
export interface BlockSubject {
  project: ProjectRow;
  branches: { id: string; branchName: string; blocks: StoredBlock[] }[];
  /** Address of the user who created the project; null if that user has moved to another tenant. */
  ownerEmail: string | null;
}

const BLOCKABLE = ['creating', 'active', 'expired'] as const;

/** Reads the project; null if it is not active. */
export async function readBlockSubject(db: Database, projectId: string): Promise<BlockSubject | null> {
  const isProject = and(eq(projects.id, projectId), eq(projects.status, 'active'));
  const [[project], branches, [owner]] = await db.batch([
    db.select().from(projects).where(isProject),
    db
      .select({
        id: projectBranches.id,
        branchName: projectBranches.branchName,
        blocks: projectBranches.blocks,
      })
      .from(projectBranches)
      .where(and(eq(projectBranches.projectId, projectId), inArray(projectBranches.status, BLOCKABLE))),
    db
      .select({ email: users.email })
      .from(users)
      .innerJoin(projects, and(eq(projects.createdBy, users.id), eq(projects.tenantId, users.tenantId)))
      .where(isProject),
  ]);
  return project ? { project, branches, ownerEmail: owner?.email ?? null } : null;
}

interface BranchChange {
  branchId: string;
  blocks: StoredBlock[];
  /** Blocks that are new, and those that have ended. */
  begun: StoredBlock[];
  ended: StoredBlock[];
}

/** Compares the observed blocks with the recorded ones. Blocks of branches without a record are ignored. */
function blockChanges({ branches }: Pick<BlockSubject, 'branches'>, observed: ProjectBlocks): BranchChange[] {
  const observedAt = Date.parse(observed.observed_at);
  return branches.flatMap(({ id, blocks: recorded }) => {
    const blocks = observed.blocks
      .filter(({ branch_id }) => branch_id === id)
      .map(({ reason, until }) => ({ reason, until }))
      .sort((a, b) => a.reason.localeCompare(b.reason));
    // A block that ended before the observation and is there again is a new one.
    const isRunning = ({ reason }: StoredBlock) =>
      recorded.some((block) => block.reason === reason && Date.parse(block.until) >= observedAt);
    const begun = blocks.filter((block) => !isRunning(block));
    const ended = recorded.filter(({ reason }) => !blocks.some((block) => block.reason === reason));
    const isChanged = JSON.stringify(blocks) !== JSON.stringify(recorded);
    return isChanged ? [{ branchId: id, blocks, begun, ended }] : [];
  });
}

/** Whether something newer is recorded. A recorded time that is still to come is by a host whose clock was ahead. */
export function isOutdated(
  { blocksObservedAt: recorded }: Pick<ProjectRow, 'blocksObservedAt'>,
  { observed_at }: ProjectBlocks,
  now: Date,
): boolean {
  return recorded !== null && recorded <= now && new Date(observed_at) < recorded;
}

/**
 * Stores the observed blocks and audits each block that is new or has ended, in one batch. An observation that is
 * outdated or recorded already changes nothing.
 * @param subject as it was read: the batch has no effect if the project has changed since
 * @returns false if the project has changed
 */
export async function storeBlocks(
  db: Database,
  { project, branches }: BlockSubject,
  observed: ProjectBlocks,
  now: Date,
): Promise<boolean> {
  const { id: projectId, tenantId, blocksObservedAt } = project;
  const observedAt = new Date(observed.observed_at);
  if (isOutdated(project, observed, now) || observedAt.getTime() === blocksObservedAt?.getTime()) return true;
  const changes = blockChanges({ branches }, observed);
  const asRead = and(
    eq(projects.id, projectId),
    eq(projects.status, 'active'),
    eq(projects.tenantId, tenantId),
    blocksObservedAt === null
      ? isNull(projects.blocksObservedAt)
      : eq(projects.blocksObservedAt, blocksObservedAt),
  );
  const isUnchanged = sql`exists (select 1 from ${projects} where ${asRead})`;
  const audited = (name: 'branch.blocked' | 'branch.unblocked', branchId: string, metadata: StoredBlock) => {
    const event = auditEvent(
      name,
      noActor(tenantId),
      { projectId, branchId, metadata: { ...metadata } },
      now,
    );
    return insertIf(db, auditEvents, event, isUnchanged);
  };
  const results = await inOneBatch(db, [
    ...changes.flatMap(({ branchId, blocks, begun, ended }) => [
      ...ended.map((block) => audited('branch.unblocked', branchId, block)),
      ...begun.map((block) => audited('branch.blocked', branchId, block)),
      db
        .update(projectBranches)
        .set({ blocks })
        .where(and(eq(projectBranches.id, branchId), isUnchanged)),
    ]),
    db.update(projects).set({ blocksObservedAt: observedAt }).where(asRead),
  ]);
  return hasChanged(results.at(-1));
}
