import type { Branch, Snapshot } from '../data/resources.ts';
import { BRANCH_TEXT } from '../strings/branch.ts';
import { dateTime } from '../strings/format.ts';
import { SNAPSHOTS_TEXT } from '../strings/snapshots.ts';

const TONES: Record<Branch['status'], string> = {
  creating: 'accent busy',
  active: 'good',
  expired: 'warn',
  deleting: 'busy',
  deleted: '',
  failed: 'bad',
};

export const BranchStatus = ({ branch }: { branch: Branch }) => (
  <>
    <span className={`badge ${TONES[branch.status]}`}>{BRANCH_TEXT.status[branch.status]}</span>
    {branch.blocked !== null && (
      <span className="badge bad">{BRANCH_TEXT.blocked(branch.blocked.reason)}</span>
    )}
  </>
);

export const BranchName = ({ name }: { name: string }) => (
  <span className={name === 'main' ? 'mono main-name' : 'mono'}>{name}</span>
);

/** A snapshot in one line. @param branch name of its branch, unless that is deleted */
export const snapshotLabel = ({ name, kind, taken_at }: Snapshot, branch: string | undefined): string =>
  `${name ?? SNAPSHOTS_TEXT.kinds[kind]} · ${branch ?? SNAPSHOTS_TEXT.deletedBranch} · ${dateTime(taken_at)}`;
