import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute, useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { bytes, dateTime, duration, secondsUntil } from '../../../shared/format.ts';
import { BranchName, SNAPSHOT_KINDS, snapshotLabel } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Check, Field, SelectField } from '../../components/field.tsx';
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
import { ResetDialog } from '../branches/branch-dialogs.tsx';

const EVERIES = [
  ['', 'never'],
  ['1h', 'every hour'],
  ['6h', 'every 6 hours'],
  ['1d', 'every day'],
] as const;
const LIVES = [
  ['', 'Never'],
  ['86400', '1 day'],
  ['604800', '7 days'],
  ['2592000', '30 days'],
] as const;

type Every = NonNullable<Project['snapshot_schedule']>['every'];

const KEEP = { initial: 7, max: 30 };

/** When snapshots of main are taken. */
function ScheduleForm({ project, mayEdit }: { project: Project; mayEdit: boolean }) {
  const schedule = project.snapshot_schedule;
  const [every, setEvery] = useState<Every | ''>(schedule?.every ?? '');
  const [keep, setKeep] = useState(String(schedule?.keep ?? KEEP.initial));
  const [masked, setMasked] = useState(schedule?.masked ?? false);
  const change = useMutation({
    mutationFn: () =>
      dataOf(
        api.PATCH('/api/v1/projects/{project_id}', {
          params: { path: { project_id: project.id } },
          body: { snapshot_schedule: every === '' ? null : { every, keep: Number(keep), masked } },
        }),
      ),
    onSuccess: (changed) => {
      announce('The schedule is changed.');
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
        <h2 id="schedule">Schedule</h2>
        <p className="quiet">
          Snapshots of main, unless nothing has changed. The oldest one is deleted first.
        </p>
      </div>
      <fieldset className="row form-row" disabled={!mayEdit}>
        <SelectField
          label="Take one"
          value={every}
          onChange={({ target }) => setEvery(target.value as Every | '')}
        >
          {EVERIES.map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </SelectField>
        {every !== '' && (
          <Field
            label="Keep"
            type="number"
            min={1}
            max={KEEP.max}
            value={keep}
            onChange={({ target }) => setKeep(target.value)}
            required
          />
        )}
        {every !== '' && (
          <Check label="Masked" checked={masked} onChange={({ target }) => setMasked(target.checked)} />
        )}
        <Button type="submit" busy={change.isPending}>
          Save
        </Button>
      </fieldset>
      {change.isError && <ErrorNote error={change.error} />}
      <CommandLine command={(project) => COMMANDS.scheduleSnapshots(project, every, keep, masked)} />
    </form>
  );
}

const TAKE = '/api/v1/projects/{project_id}/branches/{branch_ref}/snapshots';

interface Props {
  projectId: string;
  branches: readonly Branch[];
  onClose: () => void;
}

function TakeDialog({ projectId, branches, onClose }: Props) {
  const [branch, setBranch] = useState('main');
  const [name, setName] = useState('');
  const [life, setLife] = useState('');
  return (
    <ActionDialog
      title="Take a snapshot"
      action="Take snapshot"
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
        announce('The snapshot is taken.');
        refresh(snapshotsQuery(projectId));
      }}
      onClose={onClose}
      command={(project) => COMMANDS.takeSnapshot(project, branch, name.trim(), life)}
    >
      <p className="quiet">
        Copies the branch as it is now, copy-on-write. Clients of its pooled URL wait for a moment; its direct
        sessions end.
      </p>
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
        label="Name (optional)"
        value={name}
        onChange={({ target }) => setName(target.value)}
        placeholder="before-migration"
        maxLength={100}
        data-first-focus
      />
      <SelectField label="Deleted after" value={life} onChange={({ target }) => setLife(target.value)}>
        {LIVES.map(([seconds, label]) => (
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
  if (at === null) return <>Never</>;
  return <span title={dateTime(at)}>{duration(secondsUntil(at, now))}</span>;
}

type Act = { what: 'delete' | 'reset'; snapshot: Snapshot } | { what: 'take' } | null;

export const Route = createFileRoute('/_inside/projects/$projectId/snapshots')({ component: SnapshotsPage });

function SnapshotsPage() {
  const { projectId } = Route.useParams();
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
        label={`Actions of ${snapshotLabel(snapshot, branch?.branch_name)}`}
        entries={[
          {
            id: 'create',
            label: 'New branch from this',
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
            label: `Reset ${branch?.branch_name ?? 'deleted branch'} to this`,
            icon: 'refresh',
            isDisabled: branch?.status !== 'active',
            onAction: () => setAct({ what: 'reset', snapshot }),
          },
          {
            id: 'delete',
            label: 'Delete snapshot',
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
      about={`A snapshot is a closed copy of a branch. Branches can be created from it, or reset to it.${project?.recoverable ? ` Without one, a new branch can have any second since ${dateTime(project.recoverable.from)}.` : ''}`}
      actions={
        mayEdit && (
          <Button look="primary" icon="camera" onClick={() => setAct({ what: 'take' })}>
            Take snapshot
          </Button>
        )
      }
    >
      {!mayEdit && <Note>{TEXT.states.readOnly}</Note>}
      <Loaded query={snapshots}>
        {(all) => (
          <div className="card">
            {all.length === 0 ? (
              <Empty icon="camera" title="No snapshots yet">
                <p>Take one before a risky change, or let the schedule take them.</p>
              </Empty>
            ) : (
              <ListTable
                columns={['Snapshot', 'Branch', 'Size', 'Deleting frees', 'Deleted in']}
                numbers={['Size', 'Deleting frees']}
                hasActions={mayEdit}
              >
                {all.map((snapshot) => (
                  <tr key={snapshot.id}>
                    <td>
                      <div>{snapshot.name ?? SNAPSHOT_KINDS[snapshot.kind]}</div>
                      <div className="small quiet">{dateTime(snapshot.taken_at)}</div>
                    </td>
                    <td>
                      <BranchName name={branchOf(snapshot)?.branch_name ?? 'deleted branch'} />
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
      <CommandLine command={COMMANDS.listSnapshots} />
      {act?.what === 'take' && <TakeDialog projectId={projectId} branches={branches} onClose={close} />}
      {act?.what === 'reset' && resettable && (
        <ResetDialog projectId={projectId} branch={resettable} snapshotId={act.snapshot.id} onClose={close} />
      )}
      {act?.what === 'delete' && (
        <ActionDialog
          title="Delete this snapshot?"
          action="Delete snapshot"
          isDangerous
          run={() =>
            dataOf(
              api.DELETE('/api/v1/projects/{project_id}/snapshots/{snapshot_id}', {
                params: { path: { project_id: projectId, snapshot_id: act.snapshot.id } },
              }),
            )
          }
          onDone={() => {
            announce('The snapshot is deleted.');
            refresh(snapshotsQuery(projectId));
          }}
          onClose={close}
          command={(project) => COMMANDS.deleteSnapshot(project, act.snapshot.id)}
        >
          <p>
            <b>{snapshotLabel(act.snapshot, branchOf(act.snapshot)?.branch_name)}</b>
          </p>
          <p>Branches that were created from it stay. Its content cannot be brought back.</p>
        </ActionDialog>
      )}
    </Page>
  );
}
