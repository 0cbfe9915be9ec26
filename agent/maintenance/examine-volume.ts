import { hasCowHint, hasReverseMap } from './cow-hint.ts';

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
