import { useMutation, useQueryClient } from '@tanstack/react-query';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { type NetworkRule, rulesQuery } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Dialog } from '../../components/dialog.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { announce } from '../../components/toast.tsx';
import { TEXT } from '../../strings.ts';

interface Props {
  projectId: string;
  rule: NetworkRule;
  branch: string | undefined;
  onClose: () => void;
}

export function RemoveRuleDialog({ projectId, rule, branch, onClose }: Props) {
  const client = useQueryClient();
  const removal = useMutation({
    mutationFn: () =>
      dataOf(
        api.DELETE('/api/v1/projects/{project_id}/network-rules/{rule_id}', {
          params: { path: { project_id: projectId, rule_id: rule.id } },
        }),
      ),
    onSuccess: (pending) => {
      announce(pending ? TEXT.rules.removedPending : TEXT.rules.removed);
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
      onClose();
    },
  });
  return (
    <Dialog
      title={TEXT.rules.removeTitle}
      onClose={onClose}
      onSubmit={() => removal.mutate()}
      footer={
        <>
          <Button onClick={onClose}>{TEXT.actions.cancel}</Button>
          <Button type="submit" look="danger primary" busy={removal.isPending} data-first-focus>
            {TEXT.rules.remove}
          </Button>
        </>
      }
    >
      <p>{TEXT.rules.removeHint(rule.cidr, branch ?? TEXT.rules.everyBranch)}</p>
      {removal.isError && <ErrorNote error={removal.error} />}
      <CommandLine command={TEXT.cli.removeRule(projectId, rule.id)} />
    </Dialog>
  );
}
