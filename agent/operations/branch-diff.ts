import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { type Comparison, compare } from '../difference/comparison.ts';
import { ComparisonProgress } from '../difference/comparison-progress.ts';
import { countDifferences } from '../difference/count-differences.ts';
import { withSides } from '../difference/open-sides.ts';
import { compareSchemas } from '../difference/schema/compare-schemas.ts';
import type { Host } from '../host.ts';
import type { OnProgress } from '../progress.ts';
import { HostError } from '../servers/host-error.ts';

/**
 * The difference of two databases of a project.
 * @throws HostError PROJECT_BUSY, HOST_BUSY, SOURCE_MISSING
 */
export async function diffBranch(
  host: Host,
  params: Params<'branch.diff'>,
  onProgress?: OnProgress,
): Promise<MethodResult<'branch.diff'>> {
  const { within } = params;
  const until = performance.now() + within;
  const tooLong = new AbortController();
  const timer = setTimeout(() => tooLong.abort(), within);
  try {
    return await withSides(
      host,
      params,
      within,
      async (sides, session, { left, onProgress: report }) => {
        const compared =
          params.rows &&
          (await compare(host, session, sides, { within: left() }, async (comparison) => ({
            method: comparison.method,
            rows: await countRows(host, comparison, report),
          })));
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
  }
}

function countRows({ settings }: Host, comparison: Comparison, onProgress: OnProgress | undefined) {
  if (!onProgress) return countDifferences(comparison);
  const progress = new ComparisonProgress(comparison, onProgress);
  return progress.during(settings.PGDATA_DIR, () => countDifferences(comparison, progress));
}
