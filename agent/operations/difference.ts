import { type MethodResult, OPERATIONS, type Params } from '../../shared/protocol/operations.ts';
import { changedRows } from '../difference/changed-rows.ts';
import { type Comparison, compare } from '../difference/comparison.ts';
import { ComparisonProgress } from '../difference/comparison-progress.ts';
import { countDifferences } from '../difference/count-differences.ts';
import { compareSchemas } from '../difference/schema/compare-schemas.ts';
import { type ComparisonHost, withSides } from '../difference/sides.ts';
import { HostError } from '../process/host-error.ts';
import type { OnProgress } from '../process/progress.ts';

/**
 * The difference of two databases of a project.
 * @throws HostError PROJECT_BUSY, HOST_BUSY, SOURCE_MISSING
 */
export async function diffBranch(
  host: ComparisonHost,
  params: Params<'branch.diff'>,
  onProgress?: OnProgress,
): Promise<MethodResult<'branch.diff'>> {
  const { within } = params;
  const until = performance.now() + within;
  const tooLong = new AbortController();
  const timer = setTimeout(() => tooLong.abort(), within);
  const forget = host.comparisons.begin(params.job_id, tooLong);
  try {
    return await withSides(
      host,
      params,
      within,
      async (sides, session, { left, onProgress: report }) => {
        const compared =
          params.rows &&
          (await compare(
            host,
            session,
            sides,
            { within: left(), signal: tooLong.signal },
            async (comparison) => ({
              method: comparison.method,
              rows: await countRows(host, comparison, report),
            }),
          ));
        const { method, rows } = compared || { method: null, rows: null };
        const schema = params.schema ? await compareSchemas(host, sides, tooLong.signal) : null;
        return { complete: true, method, rows, schema };
      },
      onProgress,
    );
  } catch (error) {
    // A statement may be cut off just before the timer.
    const isOver = tooLong.signal.aborted || until - performance.now() < within / 10;
    if (!(error instanceof HostError && error.code === 'TIME_LIMIT_REACHED' && isOver)) throw error;
    return { complete: false, method: null, rows: null, schema: null };
  } finally {
    clearTimeout(timer);
    forget();
  }
}

/** Ends the comparison of a job, which then reports that it is not complete. */
export const cancelDiff = async (
  { comparisons }: ComparisonHost,
  { job_id }: Params<'diff.cancel'>,
): Promise<MethodResult<'diff.cancel'>> => ({ stopped: comparisons.stop(job_id) });

function countRows({ settings }: ComparisonHost, comparison: Comparison, onProgress: OnProgress | undefined) {
  if (!onProgress) return countDifferences(comparison);
  const progress = new ComparisonProgress(comparison, onProgress);
  return progress.during(settings.PGDATA_DIR, () => countDifferences(comparison, progress));
}

/** Time for the locks, and for the end of the comparison. */
const OTHERWISE_MS = 20_000;
const WITHIN_MS = OPERATIONS['row.diff'].deadline - OTHERWISE_MS;

/**
 * A page of the rows of one table that differ.
 * @throws HostError TABLE_NOT_FOUND, KEY_NOT_UNIQUE, STATEMENT_REFUSED, TIME_LIMIT_REACHED, PROJECT_BUSY,
 *   HOST_BUSY
 */
export const diffRows = (
  host: ComparisonHost,
  params: Params<'row.diff'>,
): Promise<MethodResult<'row.diff'>> =>
  withSides(host, params, WITHIN_MS, (sides, session, { left }) =>
    compare(host, session, sides, { within: left(), firstRows: true }, (comparison) =>
      changedRows(comparison, params),
    ),
  );
