import type { Branch } from '../app/resources.ts';
import { BRANCH_TEXT } from '../strings/branch.ts';

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
