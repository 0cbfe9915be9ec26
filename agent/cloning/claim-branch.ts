import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import type { BranchIdentity } from '../postgres/branches.ts';
import type { Queryable, Session } from '../postgres/connect.ts';
import { dropDatabase, readDatabases } from '../postgres/databases.ts';
import { HostError } from '../process/host-error.ts';

/**
 * Stores the branch's identity on the host before anything of it is made, so that leftovers of a crash can be
 * attributed to it. `branch.prepare` and `branch.clone` both begin with it, concurrently.
 * @throws HostError DATABASE_NAME_HELD, INVALID_CALL
 */
export async function claimBranch(db: Queryable, branch: BranchIdentity): Promise<void> {
  // Checked before the insert, so that a refusal stores nothing. A branch that takes the name later has a row
  // already.
  const [found] = await readDatabases(db, [branch.database]);
  if (found && found.mark?.branch_id !== branch.branch_id) throw nameHeld(branch.database);
  const known = await insertOrReadClaim(db, branch);
  if (!known) throw nameHeld(branch.database);
  if (
    known.job_id !== branch.job_id ||
    known.project_id !== branch.project_id ||
    known.database !== branch.database
  ) {
    throw new HostError(
      'INVALID_CALL',
      `branch ${branch.branch_id} was made by another job, or under another name`,
    );
  }
}

type Claim = Omit<BranchIdentity, 'branch_id'>;

/**
 * @returns the claim of the branch, which another operation may have inserted; nothing if the name is
 *   another's
 */
async function insertOrReadClaim(
  db: Queryable,
  { branch_id, project_id, job_id, database }: BranchIdentity,
): Promise<Claim | undefined> {
  const { rows: inserted } = await db.query<Claim>(
    `INSERT INTO branch (branch_id, project_id, job_id, database) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING
     RETURNING project_id, job_id, database`,
    [branch_id, project_id, job_id, database],
  );
  if (inserted[0]) return inserted[0];
  const { rows: known } = await db.query<Claim>(
    'SELECT project_id, job_id, database FROM branch WHERE branch_id = $1',
    [branch_id],
  );
  return known[0];
}

export const nameHeld = (database: string) =>
  new HostError(
    'DATABASE_NAME_HELD',
    `the database name ${database} still belongs to another database or branch`,
  );

/** The result of a clone that an earlier call made. */
export const ADOPTED: MethodResult<'branch.clone'> = {
  created: false,
  strategy: null,
  clone_ms: 0,
  paused_ms: 0,
  source_bytes: 0,
};

/** What earlier calls have made. A database that a crash left half-dropped is dropped first. */
export async function cloneState(
  session: Session,
  { job_id, branch_id, database }: BranchIdentity,
): Promise<'nothing' | 'built' | 'finalized'> {
  const build = buildDatabaseName(job_id);
  const found = await readDatabases(session, [build, database]);
  const finalized = found.find(({ name }) => name === database);
  if (finalized?.mark?.branch_id === branch_id) return 'finalized';
  if (finalized) throw nameHeld(database);
  if (found.length === 0) return 'nothing';
  if (!found.some(({ interrupted }) => interrupted)) return 'built';
  await dropDatabase(session, build);
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
