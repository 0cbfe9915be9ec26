import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import type { Project } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Dialog } from '../../components/dialog.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { Choice, Field, SelectField } from '../../components/field.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { KEYS_TEXT } from '../../strings/keys.ts';
import { ROLES_TEXT } from '../../strings/roles.ts';

const ROLES = [
  ['viewer', ROLES_TEXT.viewer],
  ['operator', ROLES_TEXT.operator],
  ['admin', ROLES_TEXT.admin],
  ['owner', ROLES_TEXT.owner],
] as const;
const SCOPES = [
  ['read', KEYS_TEXT.scopes.read],
  ['write', KEYS_TEXT.scopes.write],
] as const;
const DAYS = [
  ['7', KEYS_TEXT.days(7)],
  ['30', KEYS_TEXT.days(30)],
  ['90', KEYS_TEXT.days(90)],
  ['365', KEYS_TEXT.days(365)],
] as const;

interface Props {
  projects: readonly Project[];
  onClose: () => void;
  onMade: (key: Schemas['CreatedApiKey']) => void;
}

/** The least rights are selected: reading, one project, 30 days. */
export function CreateKeyDialog({ projects, onClose, onMade }: Props) {
  const [name, setName] = useState('');
  const [role, setRole] = useState<(typeof ROLES)[number][0]>('viewer');
  const [scope, setScope] = useState<'read' | 'write'>('read');
  const [chosenId, setChosenId] = useState<string | null>(null);
  const [pattern, setPattern] = useState('');
  const [networks, setNetworks] = useState('');
  const [days, setDays] = useState<(typeof DAYS)[number][0]>('30');
  // The projects can arrive after the dialog was opened.
  const projectId = chosenId ?? projects[0]?.id ?? '';
  const cidrs = networks.split(/[\s,]+/).filter(Boolean);
  const creation = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/api-keys', {
          body: {
            name,
            role,
            scopes: [scope],
            project_id: projectId || null,
            branch_pattern: pattern || null,
            cidrs: cidrs.length > 0 ? cidrs : null,
            expires_in_days: Number(days),
          },
        }),
      ),
    onSuccess: onMade,
  });
  return (
    <Dialog
      title={KEYS_TEXT.create}
      onClose={onClose}
      onSubmit={() => !creation.isPending && creation.mutate()}
      footer={
        <>
          <Button onClick={onClose}>{TEXT.actions.cancel}</Button>
          <Button type="submit" look="primary" busy={creation.isPending}>
            {KEYS_TEXT.create}
          </Button>
        </>
      }
    >
      <Field
        label={KEYS_TEXT.name}
        value={name}
        onChange={(event) => setName(event.target.value)}
        maxLength={100}
        required
        data-first-focus
      />
      <Choice legend={KEYS_TEXT.scope} name="scope" options={SCOPES} value={scope} onChange={setScope} />
      <Choice legend={ROLES_TEXT.role} name="role" options={ROLES} value={role} onChange={setRole} />
      <SelectField
        label={TEXT.nav.project}
        value={projectId}
        onChange={(event) => setChosenId(event.target.value)}
      >
        {projects.map((project) => (
          <option key={project.id} value={project.id}>
            {project.name}
          </option>
        ))}
        <option value="">{KEYS_TEXT.everyProject}</option>
      </SelectField>
      <Field
        label={KEYS_TEXT.pattern}
        hint={KEYS_TEXT.patternHint}
        className="mono"
        placeholder="pr-*"
        value={pattern}
        onChange={(event) => setPattern(event.target.value)}
      />
      <Field
        label={KEYS_TEXT.networks}
        className="mono"
        placeholder="203.0.113.0/24"
        value={networks}
        onChange={(event) => setNetworks(event.target.value)}
      />
      <Choice legend={KEYS_TEXT.life} name="days" options={DAYS} value={days} onChange={setDays} />
      {creation.isError && <ErrorNote error={creation.error} />}
      <CommandLine
        command={COMMANDS.createKey({
          name,
          role,
          isReadOnly: scope === 'read',
          projectId,
          pattern,
          cidrs,
          days,
        })}
      />
    </Dialog>
  );
}
