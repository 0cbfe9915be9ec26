import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { gateway } from '../../app/gateway.ts';
import { refresh } from '../../app/query-client.ts';
import { AT_ONCE, type Branch, branchesQuery, inBranch, snapshotsQuery } from '../../app/resources.ts';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { Note } from '../../components/feedback.tsx';
import { SelectField } from '../../components/field.tsx';
import { snapshotLabel } from '../../components/snapshot-label.ts';
import { announce } from '../../components/toast.tsx';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { COMMANDS } from '../../strings/commands.ts';

const PARENT = 'parent';
const RESET = '/api/v1/projects/{project_id}/branches/{branch_ref}/reset';

interface Props {
  projectId: string;
  branch: Branch;
  /** Of the snapshot that is proposed. */
  snapshotId?: string;
  onClose: () => void;
}

/** Gives a branch the content of its parent or of a snapshot. */
export function ResetDialog({ projectId, branch, snapshotId, onClose }: Props) {
  const branches = useQuery(branchesQuery(projectId)).data ?? [];
  const snapshots = useQuery(snapshotsQuery(projectId)).data ?? [];
  const [chosen, setChosen] = useState(snapshotId ?? null);
  const nameOf = (id: string) => branches.find((each) => each.id === id)?.branch_name;
  const parent = branch.parent_branch_id === null ? undefined : nameOf(branch.parent_branch_id);
  const sources = [
    ...(parent === undefined ? [] : [[PARENT, BRANCHES_TEXT.resetToParent(parent)] as const]),
    ...snapshots.map(
      (snapshot) => [snapshot.id, snapshotLabel(snapshot, nameOf(snapshot.branch_id))] as const,
    ),
  ];
  // A snapshot that was chosen may be gone: nothing takes its place.
  const to = chosen === null ? sources[0]?.[0] : sources.find(([id]) => id === chosen)?.[0];
  const isGuarded = branch.protected || branch.is_default;
  return (
    <ActionDialog
      title={BRANCHES_TEXT.resetTitle(branch.branch_name)}
      action={BRANCHES_TEXT.reset}
      isDangerous
      isReady={to !== undefined}
      typed={isGuarded ? [branch.branch_name] : []}
      run={(onProgress) => {
        const body = { to: to ?? PARENT, ...(isGuarded && { confirm: branch.branch_name }) };
        const params = { ...inBranch(projectId, branch.id), ...AT_ONCE };
        return gateway.create(RESET, { params, body }, { onProgress });
      }}
      onDone={() => {
        announce(BRANCHES_TEXT.resetDone(branch.branch_name));
        refresh(branchesQuery(projectId), snapshotsQuery(projectId));
      }}
      onClose={onClose}
      command={COMMANDS.resetBranch(projectId, branch.branch_name, to ?? PARENT, isGuarded)}
    >
      {sources.length === 0 ? (
        <Note>{BRANCHES_TEXT.nothingToResetTo}</Note>
      ) : (
        <SelectField
          label={BRANCHES_TEXT.resetTo}
          value={to ?? ''}
          onChange={({ target }) => setChosen(target.value)}
        >
          {sources.map(([id, label]) => (
            <option key={id} value={id}>
              {label}
            </option>
          ))}
        </SelectField>
      )}
      <p>{BRANCHES_TEXT.resetHint}</p>
      {branch.is_default && <Note tone="main">{BRANCHES_TEXT.resetMain}</Note>}
    </ActionDialog>
  );
}
