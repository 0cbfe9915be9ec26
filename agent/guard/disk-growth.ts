import type { DiskUse } from './disk-use.ts';
import type { GuardedBranch } from './guard.ts';

const MB = 2 ** 20;
/**
 * WAL that a branch at work writes: after each checkpoint it has whole pages. It is freed again, so only more counts.
 * Bytes a second.
 */
const USUAL_WAL = 4 * MB;

export interface Growth {
  branch: GuardedBranch;
  bytesPerSecond: number;
}

/** How fast each branch has taken space between two looks, the fastest first. */
export function growthBetween(before: DiskUse, now: DiskUse): Growth[] {
  const seconds = (now.at - before.at) / 1000;
  const known = new Map([...before.files].map(([{ branch_id }, bytes]) => [branch_id, bytes]));
  const wal = walBetween(before, now);
  return [...now.files]
    .map(([branch, bytes]) => {
      const files = bytes - (known.get(branch.branch_id) ?? bytes);
      const written = Math.max(0, (wal.get(branch.branch_id) ?? 0) - USUAL_WAL * seconds);
      return { branch, bytesPerSecond: (Math.max(0, files) + written) / seconds };
    })
    .sort((one, other) => other.bytesPerSecond - one.bytesPerSecond);
}

/** By branch. A session that is new has written all of its WAL since. */
function walBetween(before: DiskUse, now: DiskUse): Map<string, number> {
  const written = new Map<string, number>();
  for (const [key, { branch, bytes }] of now.wal) {
    const since = bytes - (before.wal.get(key)?.bytes ?? 0);
    written.set(branch.branch_id, (written.get(branch.branch_id) ?? 0) + since);
  }
  return written;
}
