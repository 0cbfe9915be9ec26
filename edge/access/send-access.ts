import { and, eq, getTableColumns, gt, inArray, isNotNull, ne, or, type SQL, sql } from 'drizzle-orm';
import { DEFAULT_CONNECTION_ATTEMPTS } from '../../shared/branch/connection-attempts.ts';
import type { DatabaseSettings } from '../../shared/branch/database-settings.ts';
import type { BranchRole } from '../../shared/branch/login.ts';
import { ACCESS_OF_STATE } from '../../shared/project/storage-quota.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import { openPassword, scramVerifier } from '../crypto/scram.ts';
import type { SecretKey } from '../crypto/seal.ts';
import { isLive } from '../database/conditions.ts';
import { type Database, isThere, type RowsOf } from '../database/database.ts';
import { moves } from '../database/move-schema.ts';
import {
  branchCredentials,
  type NetworkRuleRow,
  networkRules,
  projectBranches,
  projects,
  snapshots,
} from '../database/schema.ts';
import type { CallHost } from '../hosts/host-client.ts';
import { type NetworkList, networkLists, withRanges } from './network-rule.ts';

/** Gives a change of the access a new revision, so that the host can distinguish old from new. */
export const nextAccessRevision = (db: Database, projectId: string, condition: SQL) =>
  db
    .update(projects)
    .set({ accessRevision: sql`access_revision + 1` })
    .where(and(eq(projects.id, projectId), condition));

/**
 * For a branch that is removed: if a revision with the branch's rules is still on its way to the host, a
 * newer revision without them follows it. A confirmed revision needs none, because sending it again changes
 * no rules.
 */
export const withdrawAccess = (db: Database, projectId: string, condition: SQL) =>
  nextAccessRevision(db, projectId, sql`access_applied < access_revision and ${condition}`);

/** Whether the logins of the project's branches are closed because of its storage. */
const isClosedProject = (projectId: string): SQL =>
  sql`exists (select 1 from ${projects} where id = ${projectId} and storage_state = 'closed')`;

/** Whether the project is about to change its host: neither has clients then. */
const isFenced = (projectId: string): SQL =>
  isThere(moves, and(eq(moves.projectId, projectId), eq(moves.phase, 'fenced')));

/** For a branch that becomes active: in a closed project, a new revision closes it as well. */
export const closeWithProject = (db: Database, projectId: string, condition: SQL) =>
  nextAccessRevision(db, projectId, sql`${isClosedProject(projectId)} and ${condition}`);

/**
 * Records that this revision is in effect on both ports.
 * @param hostId the host that has confirmed it: the project may be on another one by now, where it says nothing
 */
export const confirmAccess = (db: Database, projectId: string, revision: number, hostId?: string) =>
  db
    .update(projects)
    .set({ accessApplied: sql`max(access_applied, ${revision})` })
    .where(and(eq(projects.id, projectId), hostId === undefined ? undefined : eq(projects.hostId, hostId)));

/**
 * The access to one project's databases with its revision, as the host receives it: its tenant, network rules,
 * closed branches (expired ones, one that an import fills, or all at twice the storage quota), write block,
 * limits of connection attempts, settings, durability, spares and new passwords.
 */
export type Access = Params<'access.apply'>['access'];

/** The queries that `accessFacts` names. */
export const accessReads = (db: Database, projectId: string) =>
  [
    db.select().from(projects).where(eq(projects.id, projectId)),
    db.select().from(networkRules).where(eq(networkRules.projectId, projectId)),
    db
      .select({ id: projectBranches.id })
      .from(projectBranches)
      .where(
        and(
          eq(projectBranches.projectId, projectId),
          isLive,
          or(
            eq(projectBranches.status, 'expired'),
            eq(projectBranches.hold, 'import'),
            and(eq(projectBranches.status, 'active'), isClosedProject(projectId)),
            isFenced(projectId),
          ),
        ),
      ),
    db
      .select(getTableColumns(branchCredentials))
      .from(branchCredentials)
      .innerJoin(projectBranches, eq(projectBranches.id, branchCredentials.branchId))
      .innerJoin(projects, eq(projects.id, projectBranches.projectId))
      .where(and(eq(projects.id, projectId), gt(branchCredentials.revision, projects.accessApplied))),
    db
      .select({
        id: projectBranches.id,
        attempts: projectBranches.connectionAttempts,
        settings: projectBranches.settings,
      })
      .from(projectBranches)
      .where(
        and(
          eq(projectBranches.projectId, projectId),
          isLive,
          inArray(projectBranches.status, ['creating', 'active', 'expired']),
          or(
            ne(projectBranches.connectionAttempts, DEFAULT_CONNECTION_ATTEMPTS),
            sql`${projectBranches.settings} <> '{}'`,
          ),
        ),
      ),
    networkLists(db),
    db
      .select({ id: snapshots.id, spares: sql<number>`${snapshots.spares}` })
      .from(snapshots)
      .where(
        and(
          eq(snapshots.projectId, projectId),
          inArray(snapshots.status, ['making', 'ready']),
          isNotNull(snapshots.spares),
        ),
      ),
  ] as const;

/** The results of `accessReads`. */
export type AccessRows = Readonly<RowsOf<ReturnType<typeof accessReads>>>;

/** Rows that decide the access to the databases of a project. */
interface AccessFacts {
  project: typeof projects.$inferSelect;
  rules: readonly NetworkRuleRow[];
  /** Branches to which nobody connects. */
  closed: readonly { id: string }[];
  /** Passwords that the host does not know. */
  changed: readonly (typeof branchCredentials.$inferSelect)[];
  /** Branches with a limit of attempts, or settings, of their own. */
  own: readonly { id: string; attempts: number; settings: DatabaseSettings }[];
  lists: readonly NetworkList[];
  spares: readonly { id: string; spares: number }[];
}

/** @returns null for a project that is gone */
export function accessFacts([
  [project],
  rules,
  closed,
  changed,
  own,
  lists,
  spares,
]: AccessRows): AccessFacts | null {
  return project ? { project, rules, closed, changed, own, lists, spares } : null;
}

export async function accessOf(
  keys: readonly SecretKey[],
  { project, rules, closed, changed, own, lists, spares }: AccessFacts,
): Promise<Access> {
  const verifiers: Record<string, Partial<Record<BranchRole, string>>> = {};
  for (const { branchId, role, keyId, sealedPassword } of changed) {
    const password = await openPassword(keys, branchId, role, { keyId, sealed: sealedPassword });
    verifiers[branchId] = { ...verifiers[branchId], [role]: await scramVerifier(password) };
  }
  const opened = withRanges(rules, lists).map(({ branchId, cidr, via }) => ({
    via,
    rule: { branch_id: branchId, cidr },
  }));
  return {
    revision: project.accessRevision,
    tenant: project.tenantId,
    rules: opened.flatMap(({ via, rule }) => (via === 'all' ? [rule] : [])),
    sql_rules: opened.flatMap(({ via, rule }) => (via === 'sql' ? [rule] : [])),
    write_blocked: ACCESS_OF_STATE[project.storageState] !== 'open',
    closed: closed.map(({ id }) => id),
    connection_attempts: Object.fromEntries(
      own
        .filter(({ attempts }) => attempts !== DEFAULT_CONNECTION_ATTEMPTS)
        .map(({ id, attempts }) => [id, attempts]),
    ),
    settings: Object.fromEntries(
      own
        .filter(({ settings }) => Object.keys(settings).length > 0)
        .map(({ id, settings }) => [id, settings]),
    ),
    durability: project.durability,
    spares: {
      of_project: project.spares,
      of_snapshots: Object.fromEntries(spares.map((snapshot) => [snapshot.id, snapshot.spares])),
    },
    verifiers,
  };
}

/**
 * Applies the current access to both ports and to open sessions, on the host that the project is on when its access is
 * read: a caller could know an earlier one, which must stay closed.
 * @param rows a read of it, if it was just made
 * @throws HostCallError
 */
export async function sendAccess(
  db: Database,
  keys: readonly SecretKey[],
  callHostOf: (hostId: string) => CallHost,
  projectId: string,
  rows?: AccessRows,
): Promise<void> {
  const facts = accessFacts(rows ?? (await db.batch(accessReads(db, projectId))));
  if (!facts || facts.project.accessApplied >= facts.project.accessRevision) return;
  const { project } = facts;
  const access = await accessOf(keys, facts);
  await callHostOf(project.hostId)('access.apply', { project_id: projectId, access });
  await confirmAccess(db, projectId, access.revision, project.hostId);
}
