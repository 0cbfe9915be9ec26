import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { storeSchemaOf } from '../difference/schema/compare-schemas.ts';
import type { Host } from '../host.ts';
import { beginRehearsal, readRehearsal, requireRoom, toRehearsal } from '../rehearsal/stored-rehearsals.ts';
import { watchTables } from '../rehearsal/watched-tables.ts';
import { HostError } from '../servers/host-error.ts';

const WITHIN_MS = 20_000;

/** Begins a rehearsal, in place of an earlier one of the branch. @throws HostError HOST_BUSY, PROJECT_BUSY, TIME_LIMIT_REACHED, STATEMENT_REFUSED */
export async function startRehearsal(
  host: Host,
  { branch_id, database, limits }: Params<'rehearsal.start'>,
): Promise<MethodResult<'rehearsal.start'>> {
  // Before the work, and again when it is stored.
  await requireRoom(host.postgres, branch_id);
  const side = { branch_id, database };
  const schema = await storeSchemaOf(host, side, AbortSignal.timeout(WITHIN_MS));
  const tables = await watchTables(host, side);
  await beginRehearsal(host.sessions, { ...side, limits, tables, schema });
  await host.lockSampler.begin();
  const stored = await readRehearsal(host.postgres, branch_id);
  if (!stored) throw new HostError('INTERNAL', 'the branch was dropped meanwhile');
  return toRehearsal(stored);
}
