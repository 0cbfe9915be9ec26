import { join } from 'node:path';
import { measureFolder } from './disk-bytes.ts';
import { freeBytes } from './volumes.ts';
import { hasCowHint, hasReverseMap } from './xfs.ts';

/** A database that is branched: the `main` of a project. */
export interface ClonedDatabase {
  name: string;
  oid: string;
  bytes: number;
}

/** From here on a clone takes most of a second on XFS, while clients of the source wait. */
const EXTENTS_MAX = 20_000;

/** Advice about the file system of the data directory, as far as it can be read. */
export async function examineVolume(dataDir: string): Promise<string[]> {
  const [isHinted, isMapped] = await Promise.all([hasCowHint(dataDir), hasReverseMap(dataDir)]);
  return [
    ...(isHinted === false
      ? [
          'Writes fragment a database even after its last clone was dropped: let the agent set the size of copy-on-write extents (`xfs_io -c "cowextsize 8192" base`).',
        ]
      : []),
    ...(isMapped === true
      ? [
          'XFS keeps a reverse map (rmapbt=1), with which a clone takes three times as long: make it with rmapbt=0.',
        ]
      : []),
  ];
}

/**
 * Advice about databases that are slow to clone because they are fragmented, and about room for copies of
 * their snapshots.
 * @param copyRoom free disk that a copy needs, as a multiple of its size; 0 if none is made
 */
export async function examineDatabases(
  dataDir: string,
  databases: readonly ClonedDatabase[],
  copyRoom: number,
  extentsMax = EXTENTS_MAX,
): Promise<string[]> {
  const found: string[] = [];
  for (const { name, oid } of databases) {
    const folder = await measureFolder(join(dataDir, 'base', oid)).catch(() => null);
    const extents = folder?.layout?.extents.length ?? 0;
    if (extents > extentsMax)
      found.push(
        `${name} lies in ${extents} extents, so its clones are slow: create branches from its latest snapshot, or defragment it with xfs_fsr.`,
      );
  }
  const free = await freeBytes(dataDir);
  const large = databases.filter(({ bytes }) => bytes * copyRoom > free).map(({ name }) => name);
  if (large.length > 0)
    found.push(
      `The disk has no room for copies of ${large.join(', ')}, so their snapshots keep sharing blocks with them and fragment them: free some, or lower SNAPSHOT_COPY_ROOM.`,
    );
  return found;
}
