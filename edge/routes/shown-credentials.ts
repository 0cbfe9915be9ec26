import { eq } from 'drizzle-orm';
import { auditedView, type CredentialsView, toCredentialsResponse } from '../access/credentials.ts';
import { missingRule, rulesOfBranches } from '../access/network-rule.ts';
import { hasChanged, isOneOf, type Statement } from '../database/database.ts';
import {
  type BranchRow,
  branchCredentials,
  hosts,
  type ProjectRow,
  projectBranches,
} from '../database/schema.ts';
import { ApiError, found } from '../errors.ts';
import { type AppContext, actorOf, connectingIp } from '../pipeline/context.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';

type ProjectIds = Pick<ProjectRow, 'id' | 'hostId'>;

/**
 * The only place where passwords leave the gateway.
 * @param audits join the batch that reads the passwords; one that changes nothing shows that a branch is gone
 */
async function readCredentials(
  c: AppContext,
  { id: projectId, hostId }: ProjectIds,
  branches: readonly BranchRow[],
  view: CredentialsView,
  audits: Statement[],
) {
  const db = databaseOf(c);
  const ids = branches.map(({ id }) => id);
  const [credentials, hostRows, rules, ...changes] = await db.batch([
    db.select().from(branchCredentials).where(isOneOf(branchCredentials.branchId, ids)),
    db.select().from(hosts).where(eq(hosts.id, hostId)),
    rulesOfBranches(db, projectId, ids),
    ...audits,
  ]);
  // The branch was deleted or moved to another tenant between the two reads.
  if (changes.some((change) => !hasChanged(change))) throw new ApiError('NOT_FOUND');
  const keys = readSettings(c.env).CREDENTIAL_KEYS;
  return Promise.all(
    branches.map(async (branch) => {
      const ofBranch = credentials.filter(({ branchId }) => branchId === branch.id);
      found(ofBranch);
      return {
        ...(await toCredentialsResponse(keys, branch, ofBranch, found(hostRows), view)),
        ...missingRule(branch, rules, connectingIp(c)),
      };
    }),
  );
}

/** The credentials of one branch. @param audits as they are recorded with the view */
export const credentialsOf = async (
  c: AppContext,
  project: ProjectIds,
  branch: BranchRow,
  view: CredentialsView,
  audits: Statement[],
) => found(await readCredentials(c, project, [branch], view, audits));

/**
 * Adds the credentials to the records of a creation's response, which record a view of each.
 * @throws ApiError BRANCH_NOT_ACTIVE if one is not active any more
 */
export async function withCredentials<R extends { id: string }>(
  c: AppContext,
  project: ProjectIds,
  records: readonly R[],
) {
  const db = databaseOf(c);
  const ids = records.map(({ id }) => id);
  const rows = await db.select().from(projectBranches).where(isOneOf(projectBranches.id, ids));
  const branches = ids.flatMap((id) => rows.find((row) => row.id === id && row.status === 'active') ?? []);
  if (branches.length < ids.length) throw new ApiError('BRANCH_NOT_ACTIVE');
  const now = new Date();
  const audits = branches.map((branch) => auditedView(db, branch, 'default', actorOf(c), now));
  const credentials = await readCredentials(c, project, branches, 'default', audits);
  return records.map((record, index) => ({ ...record, credentials: credentials[index] }));
}
