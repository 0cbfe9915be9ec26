import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { Button } from '../../components/button.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { Choice, Field } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { TEXT } from '../../strings.ts';
import { labelsOf } from '../create-branch/labels.ts';
import { GITHUB } from './workflow.ts';

const ROLES = [
  ['viewer', TEXT.roles.viewer],
  ['operator', TEXT.roles.operator],
  ['admin', TEXT.roles.admin],
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
  const creation = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/projects/{project_id}/trusts', {
          params: { path: { project_id: projectId } },
          body: { issuer, audience, claims: labelsOf(claims), role, branch_pattern: pattern || null },
        }),
      ),
    onSuccess: () => {
      announce(TEXT.trusts.created);
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
        label={TEXT.trusts.claims}
        hint={TEXT.trusts.claimsHint}
        className="mono"
        value={claims}
        onChange={(event) => setClaims(event.target.value)}
        required
        autoFocus
      />
      <Field
        label={TEXT.keys.pattern}
        hint={TEXT.keys.patternHint}
        className="mono"
        value={pattern}
        onChange={(event) => setPattern(event.target.value)}
      />
      <Choice legend={TEXT.roles.role} name="role" options={ROLES} value={role} onChange={setRole} />
      <Field
        label={TEXT.trusts.issuer}
        className="mono"
        value={issuer}
        onChange={(event) => setIssuer(event.target.value)}
        required
      />
      <Field
        label={TEXT.trusts.audience}
        className="mono"
        value={audience}
        onChange={(event) => setAudience(event.target.value)}
        required
      />
      {creation.isError && <ErrorNote error={creation.error} />}
      <div className="row">
        <Button type="submit" look="primary" busy={creation.isPending}>
          {TEXT.trusts.create}
        </Button>
        <Button look="bare" onClick={onClose}>
          {TEXT.actions.cancel}
        </Button>
      </div>
    </form>
  );
}
