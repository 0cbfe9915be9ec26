import { useMutation, useQueryClient } from '@tanstack/react-query';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { type NetworkRule, rulesQuery } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Dialog } from '../../components/dialog.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { RULES_TEXT } from '../../strings/rules.ts';

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
      announce(pending ? RULES_TEXT.removedPending : RULES_TEXT.removed);
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
      onClose();
    },
  });
  return (
    <Dialog
      title={RULES_TEXT.removeTitle}
      onClose={onClose}
      onSubmit={() => removal.mutate()}
      footer={
        <>
          <Button onClick={onClose}>{TEXT.actions.cancel}</Button>
          <Button type="submit" look="danger primary" busy={removal.isPending} data-first-focus>
            {RULES_TEXT.remove}
          </Button>
        </>
      }
    >
      <p>{RULES_TEXT.removeHint(rule.cidr, branch ?? RULES_TEXT.everyBranch)}</p>
      {removal.isError && <ErrorNote error={removal.error} />}
      <CommandLine command={COMMANDS.removeRule(projectId, rule.id)} />
    </Dialog>
  );
}
