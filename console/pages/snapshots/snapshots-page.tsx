import { useMutation, useQuery } from '@tanstack/react-query';
import { useNavigate, useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { BranchName, snapshotLabel } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { ActionMenu } from '../../components/menu.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { api, gateway } from '../../data/gateway.ts';
import { queryClient, refresh } from '../../data/query-client.ts';
import {
  AT_ONCE,
  type Branch,
  branchesQuery,
  inBranch,
  type Project,
  projectQuery,
  type Snapshot,
  snapshotsQuery,
} from '../../data/resources.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { bytes, dateTime, duration, secondsUntil } from '../../strings/format.ts';
import { SNAPSHOTS_TEXT } from '../../strings/snapshots.ts';
import { ResetDialog } from '../branches/branch-dialogs.tsx';

type Every = NonNullable<Project['snapshot_schedule']>['every'];

const KEEP = { initial: 7, max: 30 };

/** When snapshots of main are taken. */
export function ScheduleForm({ project, mayEdit }: { project: Project; mayEdit: boolean }) {
  const schedule = project.snapshot_schedule;
  const [every, setEvery] = useState<Every | ''>(schedule?.every ?? '');
  const [keep, setKeep] = useState(String(schedule?.keep ?? KEEP.initial));
  const change = useMutation({
    mutationFn: () =>
      dataOf(
        api.PATCH('/api/v1/projects/{project_id}', {
          params: { path: { project_id: project.id } },
          body: { snapshot_schedule: every === '' ? null : { every, keep: Number(keep) } },
        }),
      ),
    onSuccess: (changed) => {
      announce(SNAPSHOTS_TEXT.scheduleSaved);
      queryClient.setQueryData(projectQuery(project.id).queryKey, changed);
    },
  });
  return (
    <form
      className="card padded stack"
      aria-labelledby="schedule"
      onSubmit={(event) => {
        event.preventDefault();
        if (!change.isPending) change.mutate();
      }}
    >
      <div>
        <h2 id="schedule">{SNAPSHOTS_TEXT.schedule}</h2>
        <p className="quiet">{SNAPSHOTS_TEXT.scheduleHint}</p>
      </div>
      <fieldset className="row form-row" disabled={!mayEdit}>
        <SelectField
          label={SNAPSHOTS_TEXT.every}
          value={every}
          onChange={({ target }) => setEvery(target.value as Every | '')}
        >
          {SNAPSHOTS_TEXT.everies.map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </SelectField>
        {every !== '' && (
          <Field
            label={SNAPSHOTS_TEXT.keep}
            type="number"
            min={1}
            max={KEEP.max}
            value={keep}
            onChange={({ target }) => setKeep(target.value)}
            required
          />
        )}
        <Button type="submit" busy={change.isPending}>
          {TEXT.actions.save}
        </Button>
      </fieldset>
      {change.isError && <ErrorNote error={change.error} />}
      <CommandLine command={COMMANDS.scheduleSnapshots(project.id, every, keep)} />
    </form>
  );
}

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
