import { useMutation, useQueryClient } from '@tanstack/react-query';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { rulesQuery } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { ErrorNote, Note } from '../../components/feedback.tsx';
import { announce } from '../../components/toast.tsx';
import { CONNECT_TEXT } from '../../strings/connect.ts';
import { RULES_TEXT } from '../../strings/rules.ts';

interface Props {
  projectId: string;
  branchId: string;
  /** Of the gateway, if no rule lets the address of this browser connect; it names that address. */
  warning: string | undefined;
  onChange: () => void;
}

/** Answers "can I connect from here?", and adds the rule that is missing. */
export function Reach({ projectId, branchId, warning, onChange }: Props) {
  const client = useQueryClient();
  const cidr = warning === undefined ? undefined : /"cidr":"([^"]+)"/.exec(warning)?.[1];
  const rule = useMutation({
    mutationFn: (network: string) =>
      dataOf(
        api.POST('/api/v1/projects/{project_id}/network-rules', {
          params: { path: { project_id: projectId } },
          body: { cidr: network, branch_id: branchId, description: CONNECT_TEXT.ruleName },
        }),
      ),
    onSuccess: ({ status }) => {
      announce(status === 'applied' ? RULES_TEXT.added : RULES_TEXT.addedPending);
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
      onChange();
    },
  });
  if (warning === undefined) return <Note tone="good">{CONNECT_TEXT.reachable}</Note>;
  return (
    <Note tone="warn">
      <div className="reach">
        <p className="grow">{CONNECT_TEXT.unreachable(cidr ?? '')}</p>
        {cidr !== undefined && (
          <Button look="primary" icon="shield" busy={rule.isPending} onClick={() => rule.mutate(cidr)}>
            {CONNECT_TEXT.allow(cidr)}
          </Button>
        )}
      </div>
      {rule.isError && <ErrorNote error={rule.error} />}
    </Note>
  );
}
