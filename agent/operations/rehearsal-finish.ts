import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { compareWithStored } from '../difference/schema/compare-schemas.ts';
import type { Host } from '../host.ts';
import { reportOf } from '../rehearsal/report.ts';
import { readRehearsal, storeReport } from '../rehearsal/stored-rehearsals.ts';
import { watchTables } from '../rehearsal/watched-tables.ts';
import { readWrittenWal } from '../rehearsal/written-wal.ts';
import { reportRehearsal } from './rehearsal-read.ts';

const WITHIN_MS = 20_000;

/** Ends a rehearsal. Repeated, it returns the same report. @throws HostError HOST_BUSY, PROJECT_BUSY, TIME_LIMIT_REACHED, STATEMENT_REFUSED */
export async function finishRehearsal(
  host: Host,
  branch: Params<'rehearsal.finish'>,
): Promise<MethodResult<'rehearsal.finish'>> {
  const { branch_id, database } = branch;
  await host.lockSampler.end(branch_id);
  const stored = await readRehearsal(host.postgres, branch_id);
  if (!stored || stored.report) return reportRehearsal(host, branch);
  const { limits, locks, tables: before, wal_from, schema } = stored;
  const wal = await readWrittenWal(host, wal_from, database);
  const after = await watchTables(host, branch);
  const difference = await compareWithStored(host, branch, schema, AbortSignal.timeout(WITHIN_MS));
  const report = reportOf({ limits, before, after, locks, wal, schema: difference });
  await storeReport(host.postgres, branch_id, report);
  return reportRehearsal(host, branch);
}
