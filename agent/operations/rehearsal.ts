import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { compareWithStored, storeSchemaOf } from '../difference/schema/compare-schemas.ts';
import type { ProofHost } from '../difference/schema/prove-statements.ts';
import { measureDatabase } from '../guard/disk-space.ts';
import { HostError } from '../process/host-error.ts';
import { readWrittenWal, reportOf } from '../rehearsal/report.ts';
import type { LockSampler } from '../rehearsal/sample-locks.ts';
import {
  beginRehearsal,
  endGrowthBound,
  readRehearsal,
  requireRoom,
  storeReport,
  toRehearsal,
} from '../rehearsal/stored-rehearsals.ts';
import { watchTables } from '../rehearsal/watched-tables.ts';

/** What it takes to watch a rehearsal. */
export interface RehearsalHost extends ProofHost {
  /** Samples the locks of branches that are being rehearsed. */
  lockSampler: LockSampler;
}

const WITHIN_MS = 20_000;

/**
 * Begins a rehearsal, in place of an earlier one of the branch.
 * @throws HostError HOST_BUSY, PROJECT_BUSY, TIME_LIMIT_REACHED, STATEMENT_REFUSED
 */
export async function startRehearsal(
  host: RehearsalHost,
  { branch_id, database, limits }: Params<'rehearsal.start'>,
): Promise<MethodResult<'rehearsal.start'>> {
  // Before the work, and again when it is stored.
  await requireRoom(host.postgres, branch_id);
  const side = { branch_id, database };
  const schema = await storeSchemaOf(host, side, AbortSignal.timeout(WITHIN_MS));
  const tables = await watchTables(host, side);
  const bytes = await measureDatabase(host.postgres, database);
  // An excess of an earlier rehearsal would end this one.
  host.excesses.take(database);
  await beginRehearsal(host.sessions, { ...side, limits, tables, schema, bytes });
  await host.lockSampler.begin();
  const stored = await readRehearsal(host.postgres, branch_id);
  if (!stored) throw new HostError('INTERNAL', 'the branch was dropped meanwhile');
  return toRehearsal(stored);
}

export async function reportRehearsal(
  host: RehearsalHost,
  { branch_id }: Params<'rehearsal.read'>,
): Promise<MethodResult<'rehearsal.read'>> {
  const stored = await readRehearsal(host.postgres, branch_id);
  return { rehearsal: stored && toRehearsal(stored) };
}

/**
 * Ends a rehearsal. Repeated, it returns the same report.
 * @throws HostError HOST_BUSY, PROJECT_BUSY, TIME_LIMIT_REACHED; STATEMENT_REFUSED, once, if a watchdog has ended the migration
 */
export async function finishRehearsal(
  host: RehearsalHost,
  branch: Params<'rehearsal.finish'>,
): Promise<MethodResult<'rehearsal.finish'>> {
  const { branch_id, database } = branch;
  await endGrowthBound(host.postgres, branch_id);
  const excess = host.excesses.take(database);
  if (excess) throw new HostError('STATEMENT_REFUSED', `the migration was ended: it ${excess}`);
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
