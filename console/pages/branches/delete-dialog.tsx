import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { bytes } from '../../app/format.ts';
import { api } from '../../app/gateway.ts';
import { refresh } from '../../app/query-client.ts';
import {
  type Branch,
  branchesQuery,
  deletedBranchesQuery,
  inBranch,
  projectQuery,
  type Usage,
} from '../../app/resources.ts';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { Check } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { COMMANDS } from '../../strings/commands.ts';

interface Props {
  projectId: string;
  branches: Branch[];
  usage: Usage | undefined;
  onClose: () => void;
}

export function DeleteDialog({ projectId, branches, usage, onClose }: Props) {
  const [purge, setPurge] = useState(false);
  const remove = async () => {
    const path = '/api/v1/projects/{project_id}/branches/{branch_ref}';
    for (const { id, branch_name, protected: isProtected } of branches) {
      const query = {
        ...(purge && { purge: 'true' as const }),
        ...(isProtected && { confirm: branch_name }),
      };
      await dataOf(api.DELETE(path, { params: { ...inBranch(projectId, id), query } }));
    }
  };
  const isKept = !purge && branches.some(({ lease_seconds }) => lease_seconds === null);
  const names = branches.map((branch) => branch.branch_name);
  const sizeOf = (id: string) =>
    usage?.branches.find(({ branch_id }) => branch_id === id)?.database_size_bytes ?? null;
  return (
    <ActionDialog
      title={BRANCHES_TEXT.deleteTitle(branches.length)}
      action={BRANCHES_TEXT.delete}
      isDangerous
      typed={branches.flatMap((branch) => (branch.protected ? [branch.branch_name] : []))}
      run={() =>
        remove().finally(() =>
          refresh(branchesQuery(projectId), deletedBranchesQuery(projectId), projectQuery(projectId)),
        )
      }
      onDone={() => announce(BRANCHES_TEXT.deleted(branches.length))}
      onClose={onClose}
      command={COMMANDS.deleteBranch(projectId, names, purge)}
    >
      <ul className="plain-list">
        {branches.map(({ id, branch_name }) => {
          const size = sizeOf(id);
          return (
            <li key={id} className="row">
              <code className="grow">{branch_name}</code>
              {size !== null && <span className="quiet small">{BRANCHES_TEXT.frees(bytes(size))}</span>}
            </li>
          );
        })}
      </ul>
      <p>{isKept ? BRANCHES_TEXT.deleteKeeps : BRANCHES_TEXT.deletePurges}</p>
      <Check
        label={BRANCHES_TEXT.purge}
        checked={purge}
        onChange={({ target }) => setPurge(target.checked)}
      />
    </ActionDialog>
  );
}
