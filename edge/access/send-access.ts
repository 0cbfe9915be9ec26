import { and, eq, getTableColumns, gt, or } from 'drizzle-orm';
import type { BranchRole } from '../../shared/branch/login.ts';
import { ACCESS_OF_STATE } from '../../shared/project/storage-quota.ts';
import type { Params } from '../../shared/protocol/operations.ts';
import { openPassword, scramVerifier } from '../credentials/password.ts';
import type { SecretKey } from '../credentials/seal.ts';
import type { Database } from '../database/database.ts';
import { branchCredentials, networkRules, projectBranches, projects } from '../database/schema.ts';
import type { CallHost } from '../hosts/host-client.ts';
import { confirmAccess, isClosedProject } from './access-revision.ts';
import type { NetworkRuleRow } from './network-rule-resource.ts';

/**
 * The access to one project's databases with its revision, as the host receives it: network rules, closed branches
 * (expired ones, or all at twice the storage quota), write block and new passwords.
 */
export type Access = Params<'access.apply'>['access'];

/** The queries whose results `accessOf` takes, in the order of its parameters. */
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
          or(
            eq(projectBranches.status, 'expired'),
            and(eq(projectBranches.status, 'active'), isClosedProject(projectId)),
          ),
        ),
      ),
    db
      .select(getTableColumns(branchCredentials))
      .from(branchCredentials)
      .innerJoin(projectBranches, eq(projectBranches.id, branchCredentials.branchId))
      .innerJoin(projects, eq(projects.id, projectBranches.projectId))
      .where(and(eq(projects.id, projectId), gt(branchCredentials.revision, projects.accessApplied))),
  ] as const;

export async function accessOf(
  keys: readonly SecretKey[],
  project: typeof projects.$inferSelect,
  rules: readonly NetworkRuleRow[],
  closed: readonly { id: string }[],
  changed: readonly (typeof branchCredentials.$inferSelect)[],
): Promise<Access> {
  const verifiers: Record<string, Partial<Record<BranchRole, string>>> = {};
  for (const { branchId, role, keyId, sealedPassword } of changed) {
    const password = await openPassword(keys, branchId, role, { keyId, sealed: sealedPassword });
    verifiers[branchId] = { ...verifiers[branchId], [role]: await scramVerifier(password) };
  }
  return {
    revision: project.accessRevision,
    rules: rules.map(({ branchId, cidr }) => ({ branch_id: branchId, cidr })),
    write_blocked: ACCESS_OF_STATE[project.storageState] !== 'open',
    closed: closed.map(({ id }) => id),
    verifiers,
  };
}

/** Applies the current access to both ports and to open sessions. @throws HostCallError */
export async function sendAccess(
  db: Database,
  keys: readonly SecretKey[],
  callHost: CallHost,
  projectId: string,
): Promise<void> {
  const [[project], rules, closed, changed] = await db.batch(accessReads(db, projectId));
  if (!project || project.accessApplied >= project.accessRevision) return;
  const access = await accessOf(keys, project, rules, closed, changed);
  await callHost('access.apply', { project_id: projectId, access });
  await confirmAccess(db, projectId, access.revision);
}
