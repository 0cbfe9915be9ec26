import { useMutation, useQueryClient } from '@tanstack/react-query';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { type Branch, branchesQuery, inBranch, projectQuery } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Dialog } from '../../components/dialog.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { announce } from '../../components/toast.tsx';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';

interface Props {
  projectId: string;
  branches: Branch[];
  onClose: () => void;
}

export function DeleteDialog({ projectId, branches, onClose }: Props) {
  const client = useQueryClient();
  const removal = useMutation({
    mutationFn: async () => {
      const path = '/api/v1/projects/{project_id}/branches/{branch_ref}';
      for (const { id } of branches) await dataOf(api.DELETE(path, { params: inBranch(projectId, id) }));
    },
    onSuccess: () => {
      announce(BRANCHES_TEXT.deleted(branches.length));
      onClose();
    },
    onSettled: () => {
      client.invalidateQueries({ queryKey: branchesQuery(projectId).queryKey });
      client.invalidateQueries({ queryKey: projectQuery(projectId).queryKey });
    },
  });
  return (
    <Dialog
      title={BRANCHES_TEXT.deleteTitle(branches.length)}
      onClose={onClose}
      onSubmit={() => removal.mutate()}
      footer={
        <>
          <Button onClick={onClose}>{TEXT.actions.cancel}</Button>
          <Button type="submit" look="danger primary" busy={removal.isPending} data-first-focus>
            {BRANCHES_TEXT.delete}
          </Button>
        </>
      }
    >
      <p>{BRANCHES_TEXT.deleteHint}</p>
      <ul className="plain-list">
        {branches.map(({ id, branch_name }) => (
          <li key={id}>
            <code>{branch_name}</code>
          </li>
        ))}
      </ul>
      {removal.isError && <ErrorNote error={removal.error} />}
      <CommandLine
        command={COMMANDS.deleteBranch(
          projectId,
          branches.map((branch) => branch.branch_name),
        )}
      />
    </Dialog>
  );
}
