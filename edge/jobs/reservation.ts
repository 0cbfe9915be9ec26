import type { Failure, FailureCode } from '../../shared/failures.ts';
import { type Database, inOneBatch, type Statement, uniqueConflict } from '../database/database.ts';
import type { JobRow } from './saga.ts';

/** A job that is on record and will be carried out, or why there is none. */
export type Reservation = { job: JobRow } | { refused: Failure };

/**
 * Writes the job and what it is about, in one batch: from here on what was ordered comes to be or is undone,
 * whatever dies.
 * @param conflicts what a unique index of each table means when it refuses the batch
 * @param judge why the batch wrote nothing, from its last answer; null when it wrote all
 */
export async function reserve(
  db: Database,
  job: JobRow,
  statements: Statement[],
  conflicts: Record<string, FailureCode>,
  judge: (lastAnswer: unknown) => Failure | null,
): Promise<Reservation> {
  try {
    const refused = judge((await inOneBatch(db, statements)).at(-1));
    return refused ? { refused } : { job };
  } catch (error) {
    const [table = ''] = uniqueConflict(error)?.split('.') ?? [];
    const code = conflicts[table];
    if (!code) throw error;
    return { refused: { code } };
  }
}
