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
import { TEXT } from '../../strings.ts';
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
      announce(TEXT.trusts.removed);
      refresh();
    },
  });
  return (
    <Page
      title={TEXT.nav.trusts}
      about={TEXT.trusts.about}
      actions={
        !isCreating && (
          <Button look="primary" icon="plus" onClick={() => setCreating(true)}>
            {TEXT.trusts.create}
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
              <Empty icon="lock" title={TEXT.trusts.none}>
                <p>{TEXT.trusts.noneHint}</p>
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
                      {TEXT.trusts.remove}
                    </Button>
                  </header>
                  <div className="body stack">
                    <dl className="facts">
                      <div>
                        <dt>{TEXT.trusts.issuer}</dt>
                        <dd className="mono small">{trust.issuer}</dd>
                      </div>
                      <div>
                        <dt>{TEXT.roles.role}</dt>
                        <dd>{trust.role}</dd>
                      </div>
                      <div>
                        <dt>{TEXT.keys.pattern}</dt>
                        <dd className="mono">{trust.branch_pattern ?? TEXT.rules.everyBranch}</dd>
                      </div>
                      <div>
                        <dt>{TEXT.trusts.used}</dt>
                        <dd>
                          {trust.last_used_at === null ? TEXT.states.never : dateTime(trust.last_used_at)}
                        </dd>
                      </div>
                    </dl>
                    {trust.issuer === GITHUB && project && (
                      <details>
                        <summary>{TEXT.trusts.workflow}</summary>
                        <Snippet code={workflowOf(projectId, trust)} label={TEXT.trusts.copyWorkflow} />
                      </details>
                    )}
                  </div>
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
      <CommandLine command={TEXT.cli.listTrusts(projectId)} />
    </Page>
  );
}
