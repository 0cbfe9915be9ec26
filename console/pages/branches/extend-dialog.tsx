import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { refresh } from '../../app/query-client.ts';
import { type Branch, branchesQuery, inBranch, type Lifespan } from '../../app/resources.ts';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { Choice } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { LIFESPANS } from '../../strings/lifespans.ts';

interface Props {
  projectId: string;
  branches: Branch[];
  onClose: () => void;
}

/** Starts another life of branches; the lease of a leased branch is renewed instead. */
export function ExtendDialog({ projectId, branches, onClose }: Props) {
  const [lifespan, setLifespan] = useState<Lifespan>('7d');
  const extend = async () => {
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
  };
  const names = branches.map((branch) => branch.branch_name);
  const leased = branches.filter(({ lease_seconds }) => lease_seconds !== null);
  return (
    <ActionDialog
      title={BRANCHES_TEXT.extendTitle(branches.length)}
      action={BRANCHES_TEXT.extend}
      run={() => extend().finally(() => refresh(branchesQuery(projectId)))}
      onDone={() => announce(BRANCHES_TEXT.extended(branches.length))}
      onClose={onClose}
      command={COMMANDS.extendBranch(projectId, names, lifespan)}
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
    </ActionDialog>
  );
}
