import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { Choice, Field } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { KEYS_TEXT } from '../../strings/keys.ts';
import { ROLES_TEXT } from '../../strings/roles.ts';
import { TRUSTS_TEXT } from '../../strings/trusts.ts';
import { labelsOf } from '../create-branch/labels.ts';
import { GITHUB } from './workflow.ts';

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
