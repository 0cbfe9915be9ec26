import type { Branch } from '../app/resources.ts';
import { TEXT } from '../strings.ts';

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
    <span className={`badge ${TONES[branch.status]}`}>{TEXT.branch.status[branch.status]}</span>
    {branch.blocked !== null && (
      <span className="badge bad">{TEXT.branch.blocked(branch.blocked.reason)}</span>
    )}
  </>
);

export const BranchName = ({ name }: { name: string }) => (
  <span className={name === 'main' ? 'mono main-name' : 'mono'}>{name}</span>
);
