import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { queryClient } from '../../app/query-client.ts';
import { type Branch, branchesQuery, inBranch } from '../../app/resources.ts';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { announce } from '../../components/toast.tsx';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { COMMANDS } from '../../strings/commands.ts';

interface Props {
  projectId: string;
  branch: Branch;
  onClose: () => void;
}

/** Protects a branch, or ends its protection. */
export function ProtectDialog({ projectId, branch, onClose }: Props) {
  const { id, branch_name: name } = branch;
  const isProtected = !branch.protected;
  const protect = async () => {
    await dataOf(
      api.PATCH('/api/v1/projects/{project_id}/branches/{branch_ref}', {
        params: inBranch(projectId, id),
        body: { protected: isProtected },
      }),
    );
    // What is opened next has to know whether the branch asks for its name.
    await queryClient.invalidateQueries(branchesQuery(projectId));
  };
  return (
    <ActionDialog
      title={(isProtected ? BRANCHES_TEXT.protectTitle : BRANCHES_TEXT.unprotectTitle)(name)}
      action={isProtected ? BRANCHES_TEXT.protect : BRANCHES_TEXT.unprotect}
      run={protect}
      onDone={() => announce((isProtected ? BRANCHES_TEXT.protected : BRANCHES_TEXT.unprotected)(name))}
      onClose={onClose}
      command={COMMANDS.protectBranch(projectId, name, isProtected)}
    >
      <p>{isProtected ? BRANCHES_TEXT.protectHint : BRANCHES_TEXT.unprotectHint}</p>
    </ActionDialog>
  );
}
