import type { Database } from '../database/database.ts';
import { expireBranches } from './expire-branches.ts';
import { endLeases } from './leases.ts';

/**
 * Ends the lifespans and leases of the project's branches that are over.
 * @returns when the next one ends, in Unix milliseconds; infinite if none will
 */
export async function endLives(db: Database, projectId: string, now: Date): Promise<number> {
  const next = [await endLeases(db, projectId, now), await expireBranches(db, projectId, now)];
  return Math.min(...next.map((end) => end?.getTime() ?? Number.POSITIVE_INFINITY));
}
