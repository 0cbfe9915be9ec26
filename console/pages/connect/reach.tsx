import { useMutation, useQueryClient } from '@tanstack/react-query';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { rulesQuery } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { ErrorNote, Note } from '../../components/feedback.tsx';
import { announce } from '../../components/toast.tsx';
import { TEXT } from '../../strings.ts';

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
          body: { cidr: network, branch_id: branchId, description: TEXT.connect.ruleName },
        }),
      ),
    onSuccess: ({ status }) => {
      announce(status === 'applied' ? TEXT.rules.added : TEXT.rules.addedPending);
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
      onChange();
    },
  });
  if (warning === undefined) return <Note tone="good">{TEXT.connect.reachable}</Note>;
  return (
    <Note tone="warn">
      <div className="reach">
        <p className="grow">{TEXT.connect.unreachable(cidr ?? '')}</p>
        {cidr !== undefined && (
          <Button look="primary" icon="shield" busy={rule.isPending} onClick={() => rule.mutate(cidr)}>
            {TEXT.connect.allow(cidr)}
          </Button>
        )}
      </div>
      {rule.isError && <ErrorNote error={rule.error} />}
    </Note>
  );
}
