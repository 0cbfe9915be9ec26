import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import type { Session } from '../postgres/connect.ts';
import { dropDatabase, readDatabases } from '../postgres/databases.ts';
import { type BranchIdentity, nameHeld } from './claim-branch.ts';

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
