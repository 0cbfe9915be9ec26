import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { refresh } from '../../app/query-client.ts';
import { type NetworkRule, rulesQuery } from '../../app/resources.ts';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { RULES_TEXT } from '../../strings/rules.ts';

interface Props {
  projectId: string;
  rule: NetworkRule;
  branch: string | undefined;
  onClose: () => void;
}

export const RemoveRuleDialog = ({ projectId, rule, branch, onClose }: Props) => (
  <ActionDialog
    title={RULES_TEXT.removeTitle}
    action={RULES_TEXT.remove}
    isDangerous
    run={() =>
      dataOf(
        api.DELETE('/api/v1/projects/{project_id}/network-rules/{rule_id}', {
          params: { path: { project_id: projectId, rule_id: rule.id } },
        }),
      )
    }
    onDone={(pending) => {
      announce(pending ? RULES_TEXT.removedPending : RULES_TEXT.removed);
      refresh(rulesQuery(projectId));
    }}
    onClose={onClose}
    command={COMMANDS.removeRule(projectId, rule.id)}
  >
    <p>{RULES_TEXT.removeHint(rule.cidr, branch ?? RULES_TEXT.everyBranch)}</p>
  </ActionDialog>
);
