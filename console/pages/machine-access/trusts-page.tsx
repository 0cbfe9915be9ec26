import { useMutation, useQuery } from '@tanstack/react-query';
import { useParams } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
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
import { dateTime, labelsOf } from '../../strings/format.ts';
import { KEYS_TEXT } from '../../strings/keys.ts';
import { ROLES_TEXT } from '../../strings/roles.ts';
import { RULES_TEXT } from '../../strings/rules.ts';
import { TRUSTS_TEXT } from '../../strings/trusts.ts';
import { GITHUB, workflowOf } from './workflow.ts';

const ROLES = [
  ['viewer', ROLES_TEXT.viewer],
  ['operator', ROLES_TEXT.operator],
  ['admin', ROLES_TEXT.admin],
] as const;

interface Props {
  projectId: string;
  onClose: () => void;
  onMade: () => void;
}

/** Preset for the pull requests of one repository at GitHub, which may use branches of their own only. */
export function CreateTrustForm({ projectId, onClose, onMade }: Props) {
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
      announce(TRUSTS_TEXT.created);
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
        label={TRUSTS_TEXT.claims}
        hint={TRUSTS_TEXT.claimsHint}
        className="mono"
        value={claims}
        onChange={(event) => setClaims(event.target.value)}
        required
        autoFocus
      />
      <Field
        label={KEYS_TEXT.pattern}
        hint={KEYS_TEXT.patternHint}
        className="mono"
        value={pattern}
        onChange={(event) => setPattern(event.target.value)}
      />
      <Choice legend={ROLES_TEXT.role} name="role" options={ROLES} value={role} onChange={setRole} />
      <Field
        label={TRUSTS_TEXT.issuer}
        className="mono"
        value={issuer}
        onChange={(event) => setIssuer(event.target.value)}
        required
      />
      <Field
        label={TRUSTS_TEXT.audience}
        className="mono"
        value={audience}
        onChange={(event) => setAudience(event.target.value)}
        required
      />
      {creation.isError && <ErrorNote error={creation.error} />}
      <div className="row">
        <Button type="submit" look="primary" busy={creation.isPending}>
          {TRUSTS_TEXT.create}
        </Button>
        <Button look="bare" onClick={onClose}>
          {TEXT.actions.cancel}
        </Button>
      </div>
      <CommandLine command={COMMANDS.createTrust(projectId, trust, location.origin)} />
    </form>
  );
}

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
