import type { Queryable } from '../postgres/connect.ts';
import { readDatabases } from '../postgres/databases.ts';
import { HostError } from '../servers/host-error.ts';

/** The ids and the final database name that every branch operation carries. */
export interface BranchIdentity {
  job_id: string;
  project_id: string;
  branch_id: string;
  database: string;
}

/**
 * Stores the branch's identity on the host before anything of it is made, so that leftovers of a crash can be
 * attributed to it. `branch.prepare` and `branch.clone` both begin with it, concurrently.
 * @throws HostError DATABASE_NAME_HELD, INVALID_CALL
 */
export async function claimBranch(db: Queryable, branch: BranchIdentity): Promise<void> {
  // Checked before the insert, so that a refusal stores nothing. A branch that takes the name later has a row already.
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

/** @returns the claim of the branch, which another operation may have inserted; nothing if the name is another's */
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
