import { join } from 'node:path';
import type { DifferenceMethod } from '../../shared/protocol/difference-operations.ts';
import type { CloneHost } from '../cloning/create-clone.ts';
import type { Session } from '../postgres/connect.ts';
import { limited } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import { type BlockRanges, movedBlocks } from './extents.ts';
import type { Sides } from './sides.ts';
import { readWrittenBlocks, stretchesBetween, summarizedCheckpoint } from './written-blocks.ts';

/** Where rows can differ, in tables whose files come from one. */
export interface Candidates {
  method: DifferenceMethod;
  /** By relfilenode; without entry, or null: everywhere. */
  blocks: ReadonlyMap<string, BlockRanges> | null;
}

/** In the order in which they are tried. */
const ALL: readonly DifferenceMethod[] = ['wal_summary', 'extents', 'full'];

/**
 * Finds the blocks in which the two databases can differ. To be called when the snapshots of both are taken:
 * what is committed then is found. A method that takes too long, or too much memory, is left out.
 * @param session of the platform, in the agent's own database
 * @param relations relfilenodes that both sides have
 * @param within milliseconds; no statement of a method that finds blocks takes more than half of it
 * @param methods only these are tried; for tests and measurements
 */
export async function findCandidates(
  { settings, cloneMethod }: Pick<CloneHost, 'settings' | 'cloneMethod'>,
  session: Session,
  { before, after }: Sides,
  relations: readonly string[],
  within: number,
  methods = ALL,
): Promise<Candidates> {
  const [first, second] = await Promise.all(
    [before, after].map(({ database }) => databaseOid(session, database)),
  );
  if (first === undefined || second === undefined)
    throw new HostError('SOURCE_MISSING', 'a database of the comparison is gone');
  const share = within / 2;
  if (methods.includes('wal_summary')) {
    const blocks = await unlessTooLong(
      limited(session, share, async () => {
        const end = await summarizedCheckpoint(session);
        const stretches = end === null ? null : await stretchesBetween(session, first, second);
        return end && stretches && readWrittenBlocks(session, stretches, relations, end);
      }),
    );
    if (blocks) return { method: 'wal_summary', blocks };
  }
  if (methods.includes('extents') && cloneMethod === 'reflink') {
    const folder = join(settings.PGDATA_DIR, 'base');
    const blocks = await unlessTooLong(
      limited(session, share, async () => {
        // What the snapshots see is on the disk afterwards.
        await session.query('CHECKPOINT');
        const signal = AbortSignal.timeout(Math.ceil(share));
        return movedBlocks(folder, first, second, relations, signal).catch(() => null);
      }),
    );
    if (blocks) return { method: 'extents', blocks };
  }
  return { method: 'full', blocks: null };
}

async function unlessTooLong<T>(finding: Promise<T>): Promise<T | null> {
  try {
    return await finding;
  } catch (error) {
    if (error instanceof HostError && error.code === 'TIME_LIMIT_REACHED') return null;
    throw error;
  }
}

async function databaseOid(session: Session, database: string): Promise<string | undefined> {
  const { rows } = await session.query<{ oid: string }>(
    'SELECT oid::text FROM pg_database WHERE datname = $1',
    [database],
  );
  return rows[0]?.oid;
}
