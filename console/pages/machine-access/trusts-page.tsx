import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime, labelsOf } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine, Snippet } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, ErrorNote, Loaded } from '../../components/feedback.tsx';
import { Choice, Field } from '../../components/field.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import { projectQuery, trustsQuery } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { GITHUB, workflowOf } from './workflow.ts';

const ROLES = [
  ['viewer', 'Viewer'],
  ['operator', 'Operator'],
  ['admin', 'Admin'],
] as const;

interface Props {
  projectId: string;
  onClose: () => void;
  onMade: () => void;
}

/** Preset for the pull requests of one repository at GitHub, which may use branches of their own only. */
function CreateTrustForm({ projectId, onClose, onMade }: Props) {
  const [issuer, setIssuer] = useState(GITHUB);
  const [audience, setAudience] = useState<string>(location.origin);
  const [claims, setClaims] = useState('repository=');
  const [pattern, setPattern] = useState('pr-*');
  const [role, setRole] = useState<(typeof ROLES)[number][0]>('operator');
  const trust = { issuer, audience, claims: labelsOf(claims), role, branch_pattern: pattern || null };
  const creation = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/projects/{project_id}/trusts', {
          params: { path: { project_id: projectId } },
          body: trust,
        }),
      ),
    onSuccess: () => {
      announce('The trust is in effect.');
      onMade();
    },
  });
  return (
    <form
      className="card padded stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (!creation.isPending) creation.mutate();
      }}
    >
      <Field
        label="Claims that its tokens must have"
        hint="For instance repository=acme/shop ref=refs/pull/*"
        className="mono"
        value={claims}
        onChange={(event) => setClaims(event.target.value)}
        required
        autoFocus
      />
      <Field
        label="Only branches that match"
        hint="For instance pr-*. Empty: every branch."
        className="mono"
        value={pattern}
        onChange={(event) => setPattern(event.target.value)}
      />
      <Choice legend="Role" name="role" options={ROLES} value={role} onChange={setRole} />
      <Field
        label="Issuer"
        className="mono"
        value={issuer}
        onChange={(event) => setIssuer(event.target.value)}
        required
      />
      <Field
        label="Audience"
        className="mono"
        value={audience}
        onChange={(event) => setAudience(event.target.value)}
        required
      />
      {creation.isError && <ErrorNote error={creation.error} />}
      <div className="row">
        <Button type="submit" look="primary" busy={creation.isPending}>
          New trust
        </Button>
        <Button look="bare" onClick={onClose}>
          Cancel
        </Button>
      </div>
      <CommandLine
        command={(project) => COMMANDS.createTrust({ id: projectId, name: project }, trust, location.origin)}
      />
    </form>
  );
}

const claimsOf = ({ claims }: Schemas['Trust']) =>
  Object.entries(claims)
    .map(([name, value]) => `${name}=${value}`)
    .join(' ');

export const Route = createFileRoute('/_inside/projects/$projectId/trusts')({ component: TrustsPage });

function TrustsPage() {
  const { projectId } = Route.useParams();
  const project = useQuery(projectQuery(projectId)).data;
  const trusts = useQuery(trustsQuery(projectId));
  const [isCreating, setCreating] = useState(false);
  const [leaving, setLeaving] = useState<Schemas['Trust'] | null>(null);
  return (
    <Page
      title={TEXT.nav.trusts}
      about="A workload is a CI job or a program. Where you trust its service, it signs in with the identity that the service gives it, without a stored secret."
      actions={
        !isCreating && (
          <Button look="primary" icon="plus" onClick={() => setCreating(true)}>
            New trust
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
              <Empty icon="lock" title="No workload is trusted">
                <p>Trust the workflows of a repository to let them create branches.</p>
              </Empty>
            </div>
          ) : (
            <ul className="stack">
              {all.map((trust) => (
                <li className="card" key={trust.id}>
                  <header>
                    <h2 className="mono truncate">{claimsOf(trust)}</h2>
                    <Button compact look="danger" onClick={() => setLeaving(trust)}>
                      Remove
                    </Button>
                  </header>
                  <div className="body stack">
                    <dl className="facts">
                      <div>
                        <dt>Issuer</dt>
                        <dd className="mono small">{trust.issuer}</dd>
                      </div>
                      <div>
                        <dt>Role</dt>
                        <dd>{trust.role}</dd>
                      </div>
                      <div>
                        <dt>Only branches that match</dt>
                        <dd className="mono">{trust.branch_pattern ?? 'Every branch'}</dd>
                      </div>
                      <div>
                        <dt>Last used</dt>
                        <dd>{trust.last_used_at === null ? 'never' : dateTime(trust.last_used_at)}</dd>
                      </div>
                    </dl>
                    {trust.issuer === GITHUB && project && (
                      <details>
                        <summary>A workflow that uses it</summary>
                        <Snippet code={workflowOf(projectId, trust)} label="Copy the workflow" />
                      </details>
                    )}
                  </div>
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
      <CommandLine command={COMMANDS.listTrusts} />
      {leaving && (
        <ActionDialog
          title="Remove this trust?"
          action="Remove"
          isDangerous
          run={() =>
            dataOf(
              api.DELETE('/api/v1/projects/{project_id}/trusts/{trust_id}', {
                params: { path: { project_id: projectId, trust_id: leaving.id } },
              }),
            )
          }
          onDone={() => {
            announce('The trust is removed.');
            refresh(trustsQuery(projectId));
          }}
          onClose={() => setLeaving(null)}
          command={(project) => COMMANDS.removeTrust(project, leaving.id)}
        >
          <p className="mono">{claimsOf(leaving)}</p>
          <p>Its workloads can no longer sign in, and their tokens end within 10 seconds.</p>
        </ActionDialog>
      )}
    </Page>
  );
}
