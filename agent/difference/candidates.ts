import { join } from 'node:path';
import type { DifferenceMethod } from '../../shared/protocol/difference-operations.ts';
import type { Host } from '../host.ts';
import type { Session } from '../postgres/connect.ts';
import { HostError } from '../servers/host-error.ts';
import type { BlockRanges } from './block-ranges.ts';
import { movedBlocks } from './extents.ts';
import { stretchesBetween } from './lineage.ts';
import type { Sides } from './sides.ts';
import { readWrittenBlocks, summarizedCheckpoint } from './wal-summaries.ts';

/** Where rows can differ, in tables whose files come from one. */
export interface Candidates {
  method: DifferenceMethod;
  /** By relfilenode; without entry: nowhere. Null: everywhere. */
  blocks: ReadonlyMap<string, BlockRanges> | null;
}

/** In the order in which they are tried. */
const ALL: readonly DifferenceMethod[] = ['wal_summary', 'extents', 'full'];

/**
 * Finds the blocks in which the two databases can differ. To be called when the snapshots of both are taken: what is
 * committed then is found.
 * @param session of the platform, in the agent's own database
 * @param relations relfilenodes that both sides have
 * @param methods only these are tried; for tests and measurements
 */
export async function findCandidates(
  { settings, cloneMethod }: Pick<Host, 'settings' | 'cloneMethod'>,
  session: Session,
  { before, after }: Sides,
  relations: readonly string[],
  methods = ALL,
): Promise<Candidates> {
  const [first, second] = await Promise.all(
    [before, after].map(({ database }) => databaseOid(session, database)),
  );
  if (first === undefined || second === undefined)
    throw new HostError('SOURCE_MISSING', 'a database of the comparison is gone');
  if (methods.includes('wal_summary')) {
    const end = await summarizedCheckpoint(session);
    const stretches = end === null ? null : await stretchesBetween(session, first, second);
    const blocks = end && stretches && (await readWrittenBlocks(session, stretches, end));
    if (blocks) return { method: 'wal_summary', blocks };
  }
  if (methods.includes('extents') && cloneMethod === 'reflink') {
    // What the snapshots see is on the disk afterwards.
    await session.query('CHECKPOINT');
    const blocks = await movedBlocks(join(settings.PGDATA_DIR, 'base'), first, second, relations);
    return { method: 'extents', blocks };
  }
  return { method: 'full', blocks: null };
}

async function databaseOid(session: Session, database: string): Promise<string | undefined> {
  const { rows } = await session.query<{ oid: string }>(
    'SELECT oid::text FROM pg_database WHERE datname = $1',
    [database],
  );
  return rows[0]?.oid;
}
