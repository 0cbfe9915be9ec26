import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { inBranch } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Dialog } from '../../components/dialog.tsx';
import { ErrorNote, Note } from '../../components/feedback.tsx';
import { Check, Field } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { CONNECT_TEXT } from '../../strings/connect.ts';

const ROLES = ['owner', 'read_write', 'read_only'] as const;
type Role = (typeof ROLES)[number];

interface Props {
  projectId: string;
  branch: string;
  onClose: () => void;
  onRotated: () => void;
}

/** New passwords. It says what stops working, and main needs its name typed. */
export function RotateDialog({ projectId, branch, onClose, onRotated }: Props) {
  const [roles, setRoles] = useState<readonly Role[]>(ROLES);
  const [typed, setTyped] = useState('');
  const rotation = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/credentials/rotate', {
          params: inBranch(projectId, branch),
          body: { roles: [...roles] },
        }),
      ),
    onSuccess: () => {
      announce(CONNECT_TEXT.rotated(branch));
      onRotated();
    },
  });
  const isMain = branch === 'main';
  const isReady = roles.length > 0 && (!isMain || typed === branch);
  return (
    <Dialog
      title={CONNECT_TEXT.rotateTitle(branch)}
      onClose={onClose}
      onSubmit={() => isReady && rotation.mutate()}
      footer={
        <>
          <Button onClick={onClose}>{TEXT.actions.cancel}</Button>
          <Button type="submit" look="danger primary" disabled={!isReady} busy={rotation.isPending}>
            {CONNECT_TEXT.rotate}
          </Button>
        </>
      }
    >
      <fieldset className="field">
        <legend>{CONNECT_TEXT.rotateRoles}</legend>
        {ROLES.map((role) => (
          <Check
            key={role}
            label={CONNECT_TEXT.logins[role]}
            checked={roles.includes(role)}
            onChange={({ target }) =>
              setRoles(ROLES.filter((each) => (each === role ? target.checked : roles.includes(each))))
            }
          />
        ))}
      </fieldset>
      <Note tone="warn">{CONNECT_TEXT.rotateHint}</Note>
      {isMain && (
        <Field
          label={TEXT.actions.typeName(branch)}
          className="mono"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
          autoComplete="off"
        />
      )}
      {rotation.isError && <ErrorNote error={rotation.error} />}
      <CommandLine command={COMMANDS.rotate(projectId, branch)} />
    </Dialog>
  );
}
