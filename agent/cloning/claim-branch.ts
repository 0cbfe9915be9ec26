import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import type { BranchIdentity } from '../postgres/branches.ts';
import type { Queryable, Session } from '../postgres/connect.ts';
import { dropDatabase, type FoundDatabase, readDatabases } from '../postgres/databases.ts';
import { HostError } from '../process/host-error.ts';

/**
 * Stores the identities of a call's branches on the host before anything of them is made, so that leftovers of a crash
 * can be attributed to them. `branch.prepare` and `branch.clone` both begin with it, concurrently.
 * @throws HostError DATABASE_NAME_HELD, INVALID_CALL
 */
export async function claimBranches(db: Queryable, branches: readonly BranchIdentity[]): Promise<void> {
  // Checked before the insert, so that a refusal stores nothing. A branch that takes the name later has a row
  // already.
  const found = await readDatabases(
    db,
    branches.map(({ database }) => database),
  );
  const ids = new Map(branches.map(({ database, branch_id }) => [database, branch_id]));
  for (const { name, mark } of found) if (mark?.branch_id !== ids.get(name)) throw nameHeld(name);
  const claims = await insertOrReadClaims(db, branches);
  for (const branch of branches) {
    const known = claims.get(branch.branch_id);
    if (!known) throw nameHeld(branch.database);
    if (
      known.job_id !== branch.job_id ||
      known.project_id !== branch.project_id ||
      known.database !== branch.database
    )
      throw new HostError(
        'INVALID_CALL',
        `branch ${branch.branch_id} was made by another job, or under another name`,
      );
  }
}

/**
 * @returns the claims of the branches, which another operation may have inserted, by branch; none of a branch whose
 *   name is another's
 */
async function insertOrReadClaims(
  db: Queryable,
  branches: readonly BranchIdentity[],
): Promise<Map<string, BranchIdentity>> {
  // In one order, so that two calls for the same branches do not wait for each other.
  const { rows: inserted } = await db.query<BranchIdentity>(
    `INSERT INTO branch (branch_id, project_id, job_id, database)
     SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[]) ORDER BY 1 ON CONFLICT DO NOTHING
     RETURNING branch_id, project_id, job_id, database`,
    [
      branches.map(({ branch_id }) => branch_id),
      branches.map(({ project_id }) => project_id),
      branches.map(({ job_id }) => job_id),
      branches.map(({ database }) => database),
    ],
  );
  const claims = new Map(inserted.map((claim) => [claim.branch_id, claim]));
  const others = branches.map(({ branch_id }) => branch_id).filter((id) => !claims.has(id));
  if (others.length === 0) return claims;
  const { rows: known } = await db.query<BranchIdentity>(
    'SELECT branch_id, project_id, job_id, database FROM branch WHERE branch_id = ANY ($1)',
    [others],
  );
  for (const claim of known) claims.set(claim.branch_id, claim);
  return claims;
}

export const nameHeld = (database: string) =>
  new HostError(
    'DATABASE_NAME_HELD',
    `the database name ${database} still belongs to another database or branch`,
  );

/** The result of a clone that an earlier call made. */
export const ADOPTED: MethodResult<'branch.clone'> = {
  created: false,
  created_by: null,
  strategy: null,
  clone_ms: 0,
  paused_ms: 0,
  source_bytes: 0,
};

/** What earlier calls have made of a branch. */
export type CloneState = 'nothing' | 'built' | 'finalized';

/** What earlier calls have made. A database that a crash left half-dropped is dropped first. */
export async function cloneStates<Branch extends BranchIdentity>(
  session: Session,
  branches: readonly Branch[],
): Promise<{ branch: Branch; state: CloneState }[]> {
  const names = branches.flatMap(({ job_id, database }) => [buildDatabaseName(job_id), database]);
  const found = new Map((await readDatabases(session, names)).map((one) => [one.name, one]));
  const states = [];
  for (const branch of branches) states.push({ branch, state: await stateOf(session, branch, found) });
  return states;
}

async function stateOf(
  session: Session,
  { job_id, branch_id, database }: BranchIdentity,
  found: ReadonlyMap<string, FoundDatabase>,
): Promise<CloneState> {
  const finalized = found.get(database);
  if (finalized?.mark?.branch_id === branch_id) return 'finalized';
  if (finalized) throw nameHeld(database);
  const built = found.get(buildDatabaseName(job_id));
  if (built && !built.interrupted) return 'built';
  if (built) await dropDatabase(session, built.name);
  return 'nothing';
}

/** The branches of a call, as the host's tables name them. */
export const branchesOf = <Member extends { branch_id: string; database: string; build_id: string }>({
  project_id,
  branches,
}: {
  project_id: string;
  branches: readonly Member[];
}): (Omit<Member, 'build_id'> & BranchIdentity)[] =>
  branches.map(({ build_id, ...member }) => ({ ...member, project_id, job_id: build_id }));
