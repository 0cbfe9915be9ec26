import { useQuery } from '@tanstack/react-query';
import { useParams } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../app/format.ts';
import { api } from '../../app/gateway.ts';
import { refresh } from '../../app/query-client.ts';
import { projectQuery, trustsQuery } from '../../app/resources.ts';
import { Page } from '../../app/shell.tsx';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine, Snippet } from '../../components/copy.tsx';
import { Empty, Loaded } from '../../components/feedback.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { KEYS_TEXT } from '../../strings/keys.ts';
import { ROLES_TEXT } from '../../strings/roles.ts';
import { RULES_TEXT } from '../../strings/rules.ts';
import { TRUSTS_TEXT } from '../../strings/trusts.ts';
import { CreateTrustForm } from './create-trust-form.tsx';
import { GITHUB, workflowOf } from './workflow.ts';

const claimsOf = ({ claims }: Schemas['Trust']) =>
  Object.entries(claims)
    .map(([name, value]) => `${name}=${value}`)
    .join(' ');

export function TrustsPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId/trusts' });
  const project = useQuery(projectQuery(projectId)).data;
  const trusts = useQuery(trustsQuery(projectId));
  const [isCreating, setCreating] = useState(false);
  const [leaving, setLeaving] = useState<Schemas['Trust'] | null>(null);
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
            refresh(trustsQuery(projectId));
          }}
        />
      )}
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
                    <h2 className="mono truncate">{claimsOf(trust)}</h2>
                    <Button compact look="danger" onClick={() => setLeaving(trust)}>
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
      {leaving && (
        <ActionDialog
          title={TRUSTS_TEXT.removeTitle}
          action={TRUSTS_TEXT.remove}
          isDangerous
          run={() =>
            dataOf(
              api.DELETE('/api/v1/projects/{project_id}/trusts/{trust_id}', {
                params: { path: { project_id: projectId, trust_id: leaving.id } },
              }),
            )
          }
          onDone={() => {
            announce(TRUSTS_TEXT.removed);
            refresh(trustsQuery(projectId));
          }}
          onClose={() => setLeaving(null)}
          command={COMMANDS.removeTrust(projectId, leaving.id)}
        >
          <p className="mono">{claimsOf(leaving)}</p>
          <p>{TRUSTS_TEXT.removeHint}</p>
        </ActionDialog>
      )}
    </Page>
  );
}
