import type { Failure, FailureCode } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { type Database, inOneBatch, type Statement, uniqueConflict } from '../database/database.ts';
import type { JobRow } from './job-store.ts';

/**
 * Writes a job and its subject in one batch. After that the subject is completed or undone, whatever crashes.
 * @param conflicts the failure for a violated unique index, by table
 * @param reasonOf why the batch wrote nothing, from the result of its last statement; null if it wrote everything
 */
export async function reserve(
  db: Database,
  job: JobRow,
  statements: Statement[],
  conflicts: Record<string, FailureCode>,
  reasonOf: (lastResult: unknown) => Failure | null,
): Promise<Result<JobRow, Failure>> {
  try {
    const failure = reasonOf((await inOneBatch(db, statements)).at(-1));
    return failure ? fail(failure) : ok(job);
  } catch (error) {
    const [table = ''] = uniqueConflict(error)?.split('.') ?? [];
    const code = conflicts[table];
    if (!code) throw error;
    return fail({ code });
  }
}
