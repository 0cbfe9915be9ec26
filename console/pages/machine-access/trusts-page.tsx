import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../app/format.ts';
import { api } from '../../app/gateway.ts';
import { projectQuery, trustsQuery } from '../../app/resources.ts';
import { Page } from '../../app/shell.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine, Snippet } from '../../components/copy.tsx';
import { Empty, ErrorNote, Loaded } from '../../components/feedback.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { KEYS_TEXT } from '../../strings/keys.ts';
import { ROLES_TEXT } from '../../strings/roles.ts';
import { RULES_TEXT } from '../../strings/rules.ts';
import { TRUSTS_TEXT } from '../../strings/trusts.ts';
import { CreateTrustForm } from './create-trust-form.tsx';
import { GITHUB, workflowOf } from './workflow.ts';

export function TrustsPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId/trusts' });
  const client = useQueryClient();
  const project = useQuery(projectQuery(projectId)).data;
  const trusts = useQuery(trustsQuery(projectId));
  const [isCreating, setCreating] = useState(false);
  const refresh = () => client.invalidateQueries({ queryKey: trustsQuery(projectId).queryKey });
  const removal = useMutation({
    mutationFn: (id: string) =>
      dataOf(
        api.DELETE('/api/v1/projects/{project_id}/trusts/{trust_id}', {
          params: { path: { project_id: projectId, trust_id: id } },
        }),
      ),
    onSuccess: () => {
      announce(TRUSTS_TEXT.removed);
      refresh();
    },
  });
  return (
    <Page
      title={TEXT.nav.trusts}
      about={TRUSTS_TEXT.about}
      actions={
        !isCreating && (
          <Button look="primary" icon="plus" onClick={() => setCreating(true)}>
            {TRUSTS_TEXT.create}
          </Button>
        )
      }
    >
      {isCreating && (
        <CreateTrustForm
          projectId={projectId}
          onClose={() => setCreating(false)}
          onMade={() => {
            setCreating(false);
            refresh();
          }}
        />
      )}
      {removal.isError && <ErrorNote error={removal.error} />}
      <Loaded query={trusts}>
        {(all) =>
          all.length === 0 ? (
            <div className="card">
              <Empty icon="lock" title={TRUSTS_TEXT.none}>
                <p>{TRUSTS_TEXT.noneHint}</p>
              </Empty>
            </div>
          ) : (
            <ul className="stack">
              {all.map((trust) => (
                <li className="card" key={trust.id}>
                  <header>
                    <h2 className="mono truncate">
                      {Object.entries(trust.claims)
                        .map(([name, value]) => `${name}=${value}`)
                        .join(' ')}
                    </h2>
                    <Button
                      compact
                      look="danger"
                      busy={removal.isPending}
                      onClick={() => removal.mutate(trust.id)}
                    >
                      {TRUSTS_TEXT.remove}
                    </Button>
                  </header>
                  <div className="body stack">
                    <dl className="facts">
                      <div>
                        <dt>{TRUSTS_TEXT.issuer}</dt>
                        <dd className="mono small">{trust.issuer}</dd>
                      </div>
                      <div>
                        <dt>{ROLES_TEXT.role}</dt>
                        <dd>{trust.role}</dd>
                      </div>
                      <div>
                        <dt>{KEYS_TEXT.pattern}</dt>
                        <dd className="mono">{trust.branch_pattern ?? RULES_TEXT.everyBranch}</dd>
                      </div>
                      <div>
                        <dt>{TRUSTS_TEXT.used}</dt>
                        <dd>
                          {trust.last_used_at === null ? TEXT.states.never : dateTime(trust.last_used_at)}
                        </dd>
                      </div>
                    </dl>
                    {trust.issuer === GITHUB && project && (
                      <details>
                        <summary>{TRUSTS_TEXT.workflow}</summary>
                        <Snippet code={workflowOf(projectId, trust)} label={TRUSTS_TEXT.copyWorkflow} />
                      </details>
                    )}
                  </div>
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
      <CommandLine command={COMMANDS.listTrusts(projectId)} />
    </Page>
  );
}
