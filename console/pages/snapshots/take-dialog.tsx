import { useState } from 'react';
import { gateway } from '../../app/gateway.ts';
import { refresh } from '../../app/query-client.ts';
import { AT_ONCE, type Branch, inBranch, snapshotsQuery } from '../../app/resources.ts';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { SNAPSHOTS_TEXT } from '../../strings/snapshots.ts';

const TAKE = '/api/v1/projects/{project_id}/branches/{branch_ref}/snapshots';

interface Props {
  projectId: string;
  branches: readonly Branch[];
  onClose: () => void;
}

export function TakeDialog({ projectId, branches, onClose }: Props) {
  const [branch, setBranch] = useState('main');
  const [name, setName] = useState('');
  const [life, setLife] = useState('');
  return (
    <ActionDialog
      title={SNAPSHOTS_TEXT.takeTitle}
      action={SNAPSHOTS_TEXT.take}
      isForm
      run={(onProgress) => {
        const body = {
          ...(name.trim() !== '' && { name }),
          ...(life !== '' && { ttl_seconds: Number(life) }),
        };
        const params = { ...inBranch(projectId, branch), ...AT_ONCE };
        return gateway.create(TAKE, { params, body }, { onProgress });
      }}
      onDone={() => {
        announce(SNAPSHOTS_TEXT.taken);
        refresh(snapshotsQuery(projectId));
      }}
      onClose={onClose}
      command={COMMANDS.takeSnapshot(projectId, branch, name.trim(), life)}
    >
      <p className="quiet">{SNAPSHOTS_TEXT.takeHint}</p>
      <SelectField label={TEXT.nav.branch} value={branch} onChange={({ target }) => setBranch(target.value)}>
        {branches
          .filter(({ status }) => status === 'active')
          .map(({ id, branch_name }) => (
            <option key={id} value={branch_name}>
              {branch_name}
            </option>
          ))}
      </SelectField>
      <Field
        label={SNAPSHOTS_TEXT.name}
        value={name}
        onChange={({ target }) => setName(target.value)}
        placeholder="before-migration"
        maxLength={100}
        data-first-focus
      />
      <SelectField label={SNAPSHOTS_TEXT.life} value={life} onChange={({ target }) => setLife(target.value)}>
        {SNAPSHOTS_TEXT.lives.map(([seconds, label]) => (
          <option key={seconds} value={seconds}>
            {label}
          </option>
        ))}
      </SelectField>
    </ActionDialog>
  );
}
