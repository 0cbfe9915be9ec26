import { dateTime } from '../../shared/format.ts';
import type { Branch, Snapshot } from '../data/resources.ts';
import { blockText } from '../strings/common.ts';

export const STATUS_NAMES: Record<Branch['status'], string> = {
  creating: 'Creating',
  active: 'Active',
  expired: 'Expired',
  deleting: 'Deleting',
  deleted: 'Deleted',
  failed: 'Failed',
};

export const SNAPSHOT_KINDS = {
  manual: 'Taken by hand',
  schedule: 'Scheduled',
  safety: 'Before a reset',
  masked: 'For masked branches',
  checkpoint: 'Checkpoint',
};

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
    <span className={`badge ${TONES[branch.status]}`}>{STATUS_NAMES[branch.status]}</span>
    {branch.blocked !== null && (
      <span className={`badge ${branch.blocked.reason === 'following' ? 'accent' : 'bad'}`}>
        {blockText(branch.blocked.reason)}
      </span>
    )}
  </>
);

export const BranchName = ({ name }: { name: string }) => (
  <span className={name === 'main' ? 'mono main-name' : 'mono'}>{name}</span>
);

/** A snapshot in one line. @param branch name of its branch, unless that is deleted */
export const snapshotLabel = ({ name, kind, taken_at }: Snapshot, branch: string | undefined): string =>
  `${name ?? SNAPSHOT_KINDS[kind]} · ${branch ?? 'deleted branch'} · ${dateTime(taken_at)}`;
