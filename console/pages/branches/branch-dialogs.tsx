import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { resetPreviewOf } from '../../../client/difference.ts';
import { dataOf } from '../../../client/response-error.ts';
import { bytes, dateTime, plural } from '../../../shared/format.ts';
import { snapshotLabel } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, ErrorNote, Note } from '../../components/feedback.tsx';
import { Check, Choice, Field, SelectField } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { api, gateway } from '../../data/gateway.ts';
import { queryClient, refresh } from '../../data/query-client.ts';
import {
  AT_ONCE,
  type Branch,
  branchesQuery,
  deletedBranchesQuery,
  inBranch,
  type Lifespan,
  projectQuery,
  readSnapshots,
  snapshotsQuery,
  type Usage,
} from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { LIFESPANS } from '../../strings/common.ts';
import type { BranchAct } from './branch-tree.tsx';

interface DialogProps {
  projectId: string;
  branches: Branch[];
  usage: Usage | undefined;
  onClose: () => void;
}

function DeleteDialog({ projectId, branches, usage, onClose }: DialogProps) {
  const [purge, setPurge] = useState(false);
  const remove = async () => {
    const path = '/api/v1/projects/{project_id}/branches/{branch_ref}';
    const query = purge ? { purge: 'true' as const } : {};
    for (const { id } of branches) {
      await dataOf(api.DELETE(path, { params: { ...inBranch(projectId, id), query } }));
    }
  };
  const isKept = !purge && branches.some(({ lease_seconds }) => lease_seconds === null);
  const final = isKept ? branches.filter(({ lease_seconds }) => lease_seconds !== null) : [];
  const names = branches.map((branch) => branch.branch_name);
  const sizeOf = (id: string) =>
    usage?.branches.find(({ branch_id }) => branch_id === id)?.database_size_bytes ?? null;
  return (
    <ActionDialog
      title={branches.length === 1 ? 'Delete this branch?' : `Delete ${branches.length} branches?`}
      action="Delete"
      isDangerous
      run={() =>
        remove().finally(() =>
          refresh(branchesQuery(projectId), deletedBranchesQuery(projectId), projectQuery(projectId)),
        )
      }
      onDone={() => announce(`${plural(branches.length, 'branch is', 'branches are')} being deleted.`)}
      onClose={onClose}
      command={(project) => COMMANDS.deleteBranch(project, names, purge)}
    >
      <ul className="plain-list">
        {branches.map(({ id, branch_name }) => {
          const size = sizeOf(id);
          return (
            <li key={id} className="row">
              <code className="grow">{branch_name}</code>
              {size !== null && <span className="quiet small">frees {bytes(size)} of the quota</span>}
            </li>
          );
        })}
      </ul>
      <p>
        {isKept
          ? 'Connections end immediately. The database is kept for a while, so that the branch can be restored (Deleted branches).'
          : 'Connections end immediately. The database and everything in it is dropped, and cannot be restored.'}
      </p>
      {final.length > 0 && (
        <p>
          {final.map(({ branch_name }) => branch_name).join(', ')}: the deletion is final, because a branch
          with a lease cannot be restored.
        </p>
      )}
      <Check
        label="Drop the database immediately"
        checked={purge}
        onChange={({ target }) => setPurge(target.checked)}
      />
    </ActionDialog>
  );
}

/** Starts another life of branches; the lease of a leased branch is renewed instead. */
function ExtendDialog({ projectId, branches, onClose }: DialogProps) {
  const [lifespan, setLifespan] = useState<Lifespan>('7d');
  const extend = async () => {
    for (const { id, lease_seconds } of branches) {
      const params = inBranch(projectId, id);
      if (lease_seconds !== null) {
        const path = '/api/v1/projects/{project_id}/branches/{branch_ref}/lease';
        await dataOf(api.POST(path, { params, body: {} }));
      } else {
        const path = '/api/v1/projects/{project_id}/branches/{branch_ref}';
        await dataOf(api.PATCH(path, { params, body: { lifespan } }));
      }
    }
  };
  const names = branches.map((branch) => branch.branch_name);
  const leased = branches.filter(({ lease_seconds }) => lease_seconds !== null);
  return (
    <ActionDialog
      title={branches.length === 1 ? 'Extend this branch' : `Extend ${branches.length} branches`}
      action="Extend"
      run={() => extend().finally(() => refresh(branchesQuery(projectId)))}
      onDone={() => announce(`${plural(branches.length, 'branch', 'branches')} extended.`)}
      onClose={onClose}
      command={(project) => COMMANDS.extendBranch(project, names, lifespan)}
    >
      {leased.length < branches.length && (
        <Choice
          legend="Expires after"
          name="life"
          options={LIFESPANS}
          value={lifespan}
          onChange={setLifespan}
          hint="The new life starts now."
        />
      )}
      {leased.length > 0 && <p>The lease of {plural(leased.length, 'branch', 'branches')} is renewed.</p>}
    </ActionDialog>
  );
}

/** Protects a branch, or ends its protection. */
function ProtectDialog({ projectId, branch, onClose }: Omit<ResetProps, 'snapshotId'>) {
  const { id, branch_name: name } = branch;
  const isProtected = !branch.protected;
  const protect = async () => {
    await dataOf(
      api.PATCH('/api/v1/projects/{project_id}/branches/{branch_ref}', {
        params: inBranch(projectId, id),
        body: { protected: isProtected },
      }),
    );
    // What is opened next has to know whether the branch asks for its name.
    await queryClient.invalidateQueries(branchesQuery(projectId));
  };
  return (
    <ActionDialog
      title={isProtected ? `Protect ${name}?` : `End the protection of ${name}?`}
      action={isProtected ? 'Protect' : 'End protection'}
      run={protect}
      onDone={() =>
        announce(
          isProtected ? `${name} is protected. It cannot be deleted.` : `${name} is no longer protected.`,
        )
      }
      onClose={onClose}
      command={(project) => COMMANDS.protectBranch(project, name, isProtected)}
    >
      <p>
        {isProtected
          ? 'It can then not be deleted, not even at the end of its lease or after it has expired. A reset and a change of its rows need its name, and SQL in the console cannot change it.'
          : 'It can then be deleted and reset without its name. Its lease, or its time until it is deleted, begins again.'}
      </p>
    </ActionDialog>
  );
}

/** Gives a branch another name, which its database and URLs follow. */
function RenameDialog({ projectId, branch, onClose }: Omit<ResetProps, 'snapshotId'>) {
  const { id, branch_name: former } = branch;
  const [name, setName] = useState(former);
  const rename = async () => {
    await dataOf(
      api.PATCH('/api/v1/projects/{project_id}/branches/{branch_ref}', {
        params: inBranch(projectId, id),
        body: { branch_name: name },
      }),
    );
    await queryClient.invalidateQueries(branchesQuery(projectId));
  };
  return (
    <ActionDialog
      title={`Rename ${former}`}
      action="Rename"
      isForm
      isReady={name !== former && /^[a-z0-9_-]{3,48}$/.test(name)}
      run={rename}
      onDone={() => announce(`${former} is now ${name}. Programs need its new connection URLs.`)}
      onClose={onClose}
      command={(project) => COMMANDS.renameBranch(project, former, name)}
    >
      <Field
        label="Name"
        className="mono"
        value={name}
        onChange={({ target }) => setName(target.value)}
        hint="3 to 48 lowercase letters, digits, hyphens and underscores."
        autoComplete="off"
        spellCheck={false}
      />
      <p>
        The database, the connection URLs and their environment variables get the new name, and all sessions
        end. Passwords, rules and branches of it stay.
      </p>
    </ActionDialog>
  );
}

type Settings = Branch['settings'];

/** The settings that a branch can have, with an example of each. */
const SETTINGS: Readonly<Record<keyof Settings, string>> = {
  search_path: 'app, public',
  TimeZone: 'Europe/Berlin',
  DateStyle: 'ISO, DMY',
  IntervalStyle: 'iso_8601',
  lock_timeout: '5s',
  statement_timeout: '30s',
  idle_in_transaction_session_timeout: '1min',
  default_transaction_isolation: 'repeatable read',
  client_min_messages: 'warning',
};

/** Changes the settings that new sessions of a branch begin with. */
function SettingsDialog({ projectId, branch, onClose }: Omit<ResetProps, 'snapshotId'>) {
  const { id, branch_name: name } = branch;
  const present: Readonly<Record<string, string>> = branch.settings;
  const [typed, setTyped] = useState(present);
  const changed = Object.fromEntries(
    Object.keys(SETTINGS)
      .map((setting) => [setting, typed[setting]?.trim() || null] as const)
      .filter(([setting, value]) => value !== (present[setting] ?? null)),
  );
  const change = async () => {
    await dataOf(
      api.PATCH('/api/v1/projects/{project_id}/branches/{branch_ref}', {
        params: inBranch(projectId, id),
        // The API says which value it refuses.
        body: { settings: changed as Settings },
      }),
    );
    await queryClient.invalidateQueries(branchesQuery(projectId));
  };
  return (
    <ActionDialog
      title={`Settings of ${name}`}
      action="Save"
      isForm
      isReady={Object.keys(changed).length > 0}
      run={change}
      onDone={() => announce(`New sessions of ${name} begin with these settings.`)}
      onClose={onClose}
      command={(project) => COMMANDS.branchSettings(project, name, changed)}
    >
      <p>
        Every new session of {name}, and every new branch of it, begins with these settings. An empty field
        leaves the default of PostgreSQL.
      </p>
      {Object.entries(SETTINGS).map(([setting, example]) => (
        <Field
          key={setting}
          label={setting}
          className="mono"
          placeholder={example}
          value={typed[setting] ?? ''}
          onChange={({ target }) => setTyped({ ...typed, [setting]: target.value })}
          autoComplete="off"
          spellCheck={false}
        />
      ))}
    </ActionDialog>
  );
}

const PARENT = 'parent';
const TIME = 'time';
const RESET = '/api/v1/projects/{project_id}/branches/{branch_ref}/reset';

interface ResetProps {
  projectId: string;
  branch: Branch;
  /** ID of the snapshot that is proposed. */
  snapshotId?: string;
  onClose: () => void;
}

/** Changes that a reset to an earlier time would make, by table. */
function ResetPreview({ rows }: { rows: Schemas['ResetPreview']['rows'] }) {
  const unknown = rows?.not_compared.length ?? 0;
  return (
    <>
      {rows?.tables.length ? (
        <ListTable
          columns={['Table', 'Lost', 'Changed back', 'Brought back']}
          numbers={['Lost', 'Changed back', 'Brought back']}
          hasActions={false}
        >
          {rows.tables.map(({ schema, name, inserted, updated, deleted }) => (
            <tr key={`${schema}.${name}`}>
              <td className="mono">
                {schema}.{name}
              </td>
              <td className="number">{inserted}</td>
              <td className="number">{updated}</td>
              <td className="number">{deleted}</td>
            </tr>
          ))}
        </ListTable>
      ) : (
        <Note>No row that was compared differs from then.</Note>
      )}
      {unknown > 0 && <Note tone="warn">{plural(unknown, 'table was', 'tables were')} not compared.</Note>}
    </>
  );
}

/** Gives a branch the content of its parent, of a snapshot or of an earlier time, whose difference it shows first. */
export function ResetDialog({ projectId, branch, snapshotId, onClose }: ResetProps) {
  const branches = useQuery(branchesQuery(projectId)).data ?? [];
  const snapshots = useQuery(snapshotsQuery(projectId)).data ?? [];
  const recoverable = useQuery(projectQuery(projectId)).data?.recoverable ?? null;
  const [chosen, setChosen] = useState(snapshotId ?? null);
  const [at, setAt] = useState('');
  const moment = at === '' ? '' : new Date(at).toISOString();
  const preview = useMutation({
    mutationFn: () => resetPreviewOf(gateway, inBranch(projectId, branch.id).path, { at: moment }),
  });
  const nameOf = (id: string) => branches.find((each) => each.id === id)?.branch_name;
  const parent = branch.parent_branch_id === null ? undefined : nameOf(branch.parent_branch_id);
  const sources = [
    ...(parent === undefined ? [] : [[PARENT, `${parent}, as it is now`] as const]),
    ...snapshots.map(
      (snapshot) => [snapshot.id, snapshotLabel(snapshot, nameOf(snapshot.branch_id))] as const,
    ),
    ...(recoverable ? [[TIME, 'an earlier time'] as const] : []),
  ];
  // A snapshot that was chosen may be gone: nothing takes its place.
  const to = chosen === null ? sources[0]?.[0] : sources.find(([id]) => id === chosen)?.[0];
  const isGuarded = branch.protected || branch.is_default;
  const source = to === TIME ? { to: to as typeof TIME, at: moment } : { to: to ?? PARENT };
  return (
    <ActionDialog
      title={`Reset ${branch.branch_name}?`}
      action="Reset"
      isDangerous
      isReady={to !== undefined && (to !== TIME || preview.isSuccess)}
      typed={isGuarded ? [branch.branch_name] : []}
      run={(onProgress) => {
        const body = { ...source, ...(isGuarded && { confirm: branch.branch_name }) };
        const params = { ...inBranch(projectId, branch.id), ...AT_ONCE };
        return gateway.create(RESET, { params, body }, { onProgress });
      }}
      onDone={async ({ safety_snapshot_id: left }) => {
        refresh(branchesQuery(projectId), snapshotsQuery(projectId));
        const all = await readSnapshots(projectId).catch(() => []);
        const snapshot = all.find(({ id }) => id === left);
        const kept =
          snapshot && ` What it held is the snapshot “${snapshotLabel(snapshot, branch.branch_name)}”.`;
        announce(`${branch.branch_name} is reset.${kept ?? ''}`);
      }}
      onClose={onClose}
      command={(project) =>
        COMMANDS.resetBranch(project, branch.branch_name, to ?? PARENT, isGuarded, to === TIME ? moment : '')
      }
    >
      {sources.length === 0 ? (
        <Note>There is nothing to reset to: the branch has no parent, and the project no snapshot.</Note>
      ) : (
        <SelectField
          label="To the content of"
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
      {to === TIME && recoverable && (
        <>
          <Field
            label="As it was at"
            type="datetime-local"
            step={1}
            value={at}
            onChange={({ target }) => {
              setAt(target.value);
              preview.reset();
            }}
            hint={`Any second since ${dateTime(recoverable.from)}.`}
          />
          <Button onClick={() => preview.mutate()} disabled={at === ''} busy={preview.isPending}>
            Show what would be lost
          </Button>
          {preview.data && <ResetPreview rows={preview.data.rows} />}
          {preview.isError && <ErrorNote error={preview.error} />}
        </>
      )}
      <p>
        URLs, passwords and rules stay, and sessions end. What the branch holds now is kept as a snapshot for
        24 hours.
      </p>
      {branch.is_default && (
        <Note tone="main">This replaces the content of main, which every new branch is cloned from.</Note>
      )}
    </ActionDialog>
  );
}

/** Does something with branches, after a question. */
export function BranchDialog({ what, ...props }: DialogProps & { what: BranchAct }) {
  const [branch] = props.branches;
  if (what === 'delete') return <DeleteDialog {...props} />;
  if (what === 'extend') return <ExtendDialog {...props} />;
  if (!branch) return null;
  const about = { projectId: props.projectId, branch, onClose: props.onClose };
  if (what === 'rename') return <RenameDialog {...about} />;
  if (what === 'settings') return <SettingsDialog {...about} />;
  return what === 'protect' ? <ProtectDialog {...about} /> : <ResetDialog {...about} />;
}
