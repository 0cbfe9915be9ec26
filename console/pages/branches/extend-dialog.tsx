import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { type Branch, branchesQuery, inBranch, type Lifespan } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Dialog } from '../../components/dialog.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { Choice } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { LIFESPANS } from '../../strings/lifespans.ts';

interface Props {
  projectId: string;
  branches: Branch[];
  onClose: () => void;
}

/** Starts another life of branches; the lease of a leased branch is renewed instead. */
export function ExtendDialog({ projectId, branches, onClose }: Props) {
  const client = useQueryClient();
  const [lifespan, setLifespan] = useState<Lifespan>('7d');
  const extension = useMutation({
    mutationFn: async () => {
      for (const { id, lease_seconds } of branches) {
        const params = inBranch(projectId, id);
        if (lease_seconds !== null) {
          const path = '/api/v1/projects/{project_id}/branches/{branch_ref}/lease';
          await dataOf(api.POST(path, { params, body: {} }));
        } else {
          const path = '/api/v1/projects/{project_id}/branches/{branch_ref}';
          await dataOf(api.PATCH(path, { params, body: { lifespan } }));
        }
      }
    },
    onSuccess: () => {
      announce(BRANCHES_TEXT.extended(branches.length));
      onClose();
    },
    onSettled: () => client.invalidateQueries({ queryKey: branchesQuery(projectId).queryKey }),
  });
  const leased = branches.filter(({ lease_seconds }) => lease_seconds !== null);
  return (
    <Dialog
      title={BRANCHES_TEXT.extendTitle(branches.length)}
      onClose={onClose}
      onSubmit={() => extension.mutate()}
      footer={
        <>
          <Button onClick={onClose}>{TEXT.actions.cancel}</Button>
          <Button type="submit" look="primary" busy={extension.isPending} data-first-focus>
            {BRANCHES_TEXT.extend}
          </Button>
        </>
      }
    >
      {leased.length < branches.length && (
        <Choice
          legend={BRANCHES_TEXT.life}
          name="life"
          options={LIFESPANS}
          value={lifespan}
          onChange={setLifespan}
          hint={BRANCHES_TEXT.lifeHint}
        />
      )}
      {leased.length > 0 && <p>{BRANCHES_TEXT.leasesRenewed(leased.length)}</p>}
      {extension.isError && <ErrorNote error={extension.error} />}
      <CommandLine
        command={COMMANDS.extendBranch(
          projectId,
          branches.map((branch) => branch.branch_name),
          lifespan,
        )}
      />
    </Dialog>
  );
}
