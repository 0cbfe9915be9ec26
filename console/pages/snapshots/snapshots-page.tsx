import { useQuery } from '@tanstack/react-query';
import { useNavigate, useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { bytes, dateTime, duration, secondsUntil } from '../../app/format.ts';
import { api } from '../../app/gateway.ts';
import { refresh } from '../../app/query-client.ts';
import {
  type Branch,
  branchesQuery,
  projectQuery,
  type Snapshot,
  snapshotsQuery,
} from '../../app/resources.ts';
import { mayChange, sessionStore } from '../../app/session.ts';
import { Page } from '../../app/shell.tsx';
import { useStore } from '../../app/store.ts';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { BranchName } from '../../components/branch-status.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, Loaded, Note } from '../../components/feedback.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { ActionMenu } from '../../components/menu.tsx';
import { useNow } from '../../components/now.ts';
import { snapshotLabel } from '../../components/snapshot-label.ts';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { SNAPSHOTS_TEXT } from '../../strings/snapshots.ts';
import { ResetDialog } from '../branches/reset-dialog.tsx';
import { ScheduleForm } from './schedule-form.tsx';
import { TakeDialog } from './take-dialog.tsx';

function Expiry({ at }: { at: string | null }) {
  const now = useNow();
  if (at === null) return <>{SNAPSHOTS_TEXT.stays}</>;
  return <span title={dateTime(at)}>{duration(secondsUntil(at, now))}</span>;
}

type Act = { what: 'delete' | 'reset'; snapshot: Snapshot } | { what: 'take' } | null;

export function SnapshotsPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId/snapshots' });
  const navigate = useNavigate();
  const session = useStore(sessionStore);
  const mayEdit = session.state === 'signed_in' && mayChange(session.me);
  const project = useQuery(projectQuery(projectId)).data;
  const branches = useQuery(branchesQuery(projectId)).data ?? [];
  const snapshots = useQuery(snapshotsQuery(projectId));
  const [act, setAct] = useState<Act>(null);
  const close = () => setAct(null);
  const branchOf = ({ branch_id }: Snapshot): Branch | undefined =>
    branches.find(({ id }) => id === branch_id);
  const resettable = act?.what === 'reset' ? branchOf(act.snapshot) : undefined;

  const menuOf = (snapshot: Snapshot) => {
    const branch = branchOf(snapshot);
    return (
      <ActionMenu
        label={SNAPSHOTS_TEXT.actionsOf(snapshotLabel(snapshot, branch?.branch_name))}
        entries={[
          {
            id: 'create',
            label: SNAPSHOTS_TEXT.createFrom,
            icon: 'branch',
            onAction: () =>
              navigate({
                to: '/projects/$projectId/create-branch',
                params: { projectId },
                search: { snapshot: snapshot.id },
              }),
          },
          {
            id: 'reset',
            label: SNAPSHOTS_TEXT.reset(branch?.branch_name ?? SNAPSHOTS_TEXT.deletedBranch),
            icon: 'refresh',
            isDisabled: branch?.status !== 'active',
            onAction: () => setAct({ what: 'reset', snapshot }),
          },
          {
            id: 'delete',
            label: SNAPSHOTS_TEXT.delete,
            icon: 'trash',
            isDangerous: true,
            onAction: () => setAct({ what: 'delete', snapshot }),
          },
        ]}
      />
    );
  };

  return (
    <Page
      title={TEXT.nav.snapshots}
      about={SNAPSHOTS_TEXT.about}
      actions={
        mayEdit && (
          <Button look="primary" icon="camera" onClick={() => setAct({ what: 'take' })}>
            {SNAPSHOTS_TEXT.take}
          </Button>
        )
      }
    >
      {!mayEdit && <Note>{TEXT.states.readOnly}</Note>}
      <Loaded query={snapshots}>
        {(all) => (
          <div className="card">
            {all.length === 0 ? (
              <Empty icon="camera" title={SNAPSHOTS_TEXT.none}>
                <p>{SNAPSHOTS_TEXT.noneHint}</p>
              </Empty>
            ) : (
              <ListTable
                columns={SNAPSHOTS_TEXT.columns}
                numbers={SNAPSHOTS_TEXT.numbers}
                hasActions={mayEdit}
              >
                {all.map((snapshot) => (
                  <tr key={snapshot.id}>
                    <td>
                      <div>{snapshot.name ?? SNAPSHOTS_TEXT.kinds[snapshot.kind]}</div>
                      <div className="small quiet">{dateTime(snapshot.taken_at)}</div>
                    </td>
                    <td>
                      <BranchName name={branchOf(snapshot)?.branch_name ?? SNAPSHOTS_TEXT.deletedBranch} />
                    </td>
                    <td className="number">{bytes(snapshot.size_bytes)}</td>
                    <td className="number">
                      {snapshot.own_bytes === null ? '–' : bytes(snapshot.own_bytes)}
                    </td>
                    <td className="quiet">
                      <Expiry at={snapshot.expires_at} />
                    </td>
                    {mayEdit && <td className="actions">{menuOf(snapshot)}</td>}
                  </tr>
                ))}
              </ListTable>
            )}
          </div>
        )}
      </Loaded>
      {project && <ScheduleForm key={project.id} project={project} mayEdit={mayEdit} />}
      <CommandLine command={COMMANDS.listSnapshots(projectId)} />
      {act?.what === 'take' && <TakeDialog projectId={projectId} branches={branches} onClose={close} />}
      {act?.what === 'reset' && resettable && (
        <ResetDialog projectId={projectId} branch={resettable} snapshotId={act.snapshot.id} onClose={close} />
      )}
      {act?.what === 'delete' && (
        <ActionDialog
          title={SNAPSHOTS_TEXT.deleteTitle}
          action={SNAPSHOTS_TEXT.delete}
          isDangerous
          run={() =>
            dataOf(
              api.DELETE('/api/v1/projects/{project_id}/snapshots/{snapshot_id}', {
                params: { path: { project_id: projectId, snapshot_id: act.snapshot.id } },
              }),
            )
          }
          onDone={() => {
            announce(SNAPSHOTS_TEXT.deleted);
            refresh(snapshotsQuery(projectId));
          }}
          onClose={close}
          command={COMMANDS.deleteSnapshot(projectId, act.snapshot.id)}
        >
          <p>
            <b>{snapshotLabel(act.snapshot, branchOf(act.snapshot)?.branch_name)}</b>
          </p>
          <p>{SNAPSHOTS_TEXT.deleteHint}</p>
        </ActionDialog>
      )}
    </Page>
  );
}
