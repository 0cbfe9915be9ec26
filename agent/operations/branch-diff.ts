import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { compare } from '../difference/comparison.ts';
import { countDifferences } from '../difference/count-differences.ts';
import { withSides } from '../difference/open-sides.ts';
import { compareSchemas } from '../difference/schema/compare-schemas.ts';
import type { Host } from '../host.ts';
import { HostError } from '../servers/host-error.ts';

/**
 * The difference of two databases of a project.
 * @throws HostError PROJECT_BUSY, HOST_BUSY, SOURCE_MISSING
 */
export async function diffBranch(
  host: Host,
  params: Params<'branch.diff'>,
): Promise<MethodResult<'branch.diff'>> {
  const { within } = params;
  const until = performance.now() + within;
  const left = () => Math.max(1, Math.round(until - performance.now()));
  const tooLong = new AbortController();
  const timer = setTimeout(() => tooLong.abort(), within);
  try {
    return await withSides(host, params, within, async (sides, session) => {
      const compared =
        params.rows &&
        (await compare(host, session, sides, { within: left() }, async (comparison) => ({
          method: comparison.method,
          rows: await countDifferences(comparison),
        })));
      const { method, rows } = compared || { method: null, rows: null };
      const schema = params.schema ? await compareSchemas(host, sides, tooLong.signal) : null;
      return { complete: true, method, rows, schema };
    });
  } catch (error) {
    // A statement may be cut off just before the timer.
    const isOver = tooLong.signal.aborted || left() < within / 10;
    if (!(error instanceof HostError && error.code === 'HOST_TIMEOUT' && isOver)) throw error;
    return { complete: false, method: null, rows: null, schema: null };
  } finally {
    clearTimeout(timer);
  }
}
