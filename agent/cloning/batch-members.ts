import type { BranchIdentity } from './claim-branch.ts';

interface Batch<Member> {
  project_id: string;
  branches: readonly Member[];
}

/**
 * The branches of a batch as single operations name them. Each is built under its own id, because a job's id names one
 * database under construction.
 */
export const membersOf = <Member extends { branch_id: string; database: string }>({
  project_id,
  branches,
}: Batch<Member>): (Member & BranchIdentity)[] =>
  branches.map((member) => ({ ...member, project_id, job_id: member.branch_id }));
