import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { inBranch } from '../../app/resources.ts';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { Note } from '../../components/feedback.tsx';
import { Check } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
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
  return (
    <ActionDialog
      title={CONNECT_TEXT.rotateTitle(branch)}
      action={CONNECT_TEXT.rotate}
      isDangerous
      isReady={roles.length > 0}
      typed={branch === 'main' ? [branch] : []}
      run={() =>
        dataOf(
          api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/credentials/rotate', {
            params: inBranch(projectId, branch),
            body: { roles: [...roles] },
          }),
        )
      }
      onDone={() => {
        announce(CONNECT_TEXT.rotated(branch));
        onRotated();
      }}
      onClose={onClose}
      // Without a role, the command would rotate all of them.
      {...(roles.length > 0 && { command: COMMANDS.rotate(projectId, branch, roles) })}
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
    </ActionDialog>
  );
}
