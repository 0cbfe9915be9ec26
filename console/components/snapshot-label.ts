import { dateTime } from '../app/format.ts';
import type { Snapshot } from '../app/resources.ts';
import { SNAPSHOTS_TEXT } from '../strings/snapshots.ts';

/** A snapshot in one line. @param branch name of its branch, unless that is deleted */
export const snapshotLabel = ({ name, kind, taken_at }: Snapshot, branch: string | undefined): string =>
  `${name ?? SNAPSHOTS_TEXT.kinds[kind]} · ${branch ?? SNAPSHOTS_TEXT.deletedBranch} · ${dateTime(taken_at)}`;
