import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute, useNavigate } from '@tanstack/react-router';
import { type ReactNode, useId, useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { SPARES_WAITS } from '../../../shared/branch/spares-wait.ts';
import { dateTime } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Check, Field, SelectField } from '../../components/field.tsx';
import { JobSteps } from '../../components/job-steps.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { queryClient, refresh } from '../../data/query-client.ts';
import {
  jobsQuery,
  type Project,
  type ProjectDetails,
  projectQuery,
  projectsQuery,
  usageQuery,
} from '../../data/resources.ts';
import { mayAdminister, mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';

/** For the command line; empty if it stays as it is. */
const choiceOf = ({ masked_only }: Project, wanted: boolean) =>
  masked_only === wanted ? '' : wanted ? 'on' : 'off';

/** By `durability_state`. */
const DURABILITY_HINTS = {
  off: 'With a standby, a commit survives the loss of the host, and waits while the standby is away. A change ends open sessions.',
  confirming: 'The standby confirms each commit.',
  waiting: 'The standby is away, and commits wait for it.',
} as const;

const SPARES_HINT =
  'Clones that are kept ready for its next branches, which then take milliseconds: a number up to 32, or auto.';

function sparesHint(state: ProjectDetails['spares_state']): string {
  if (state === null) return SPARES_HINT;
  const { wanted, ready, waiting_for: wait } = state;
  return [SPARES_HINT, `${ready} of ${wanted} are ready.`, wait && SPARES_WAITS[wait]]
    .filter(Boolean)
    .join(' ');
}

interface Change {
  name?: string;
  storage_quota_gib?: number;
  connection_attempts_per_minute?: number;
  spares?: number | 'auto';
  durability?: 'async' | 'sync';
  masked_only?: boolean;
  rotate_credentials?: 'all' | 'all_but_main';
  change_approvals?: number;
}

/** What the command line says of a part; empty texts stay out. */
const COMMAND = {
  name: '',
  quota: '',
  attempts: '',
  spares: '',
  durability: '',
  maskedOnly: '',
  rotation: '',
  approvals: '',
};

interface PartProps {
  project: ProjectDetails;
  title: string;
  /** Null: nothing has changed. */
  change: Change | null;
  command: Partial<typeof COMMAND>;
  onSaved?: () => void;
  children: ReactNode;
}

/** Settings that are saved together. */
function Part({ project, title, change, command, onSaved, children }: PartProps) {
  const id = useId();
  const saving = useMutation({
    mutationFn: (body: Change) =>
      dataOf(
        api.PATCH('/api/v1/projects/{project_id}', { params: { path: { project_id: project.id } }, body }),
      ),
    onSuccess: ({ warning, credentials_rotated: rotated, ...changed }) => {
      const replaced = rotated !== undefined && `Branches with new passwords: ${rotated}.`;
      announce([`${title}: saved.`, replaced, warning].filter(Boolean).join(' '));
      onSaved?.();
      queryClient.setQueryData(projectQuery(project.id).queryKey, changed);
      refresh(usageQuery(project.id), projectsQuery());
    },
  });
  return (
    <form
      className="card padded stack"
      aria-labelledby={id}
      onSubmit={(event) => {
        event.preventDefault();
        if (change && !saving.isPending) saving.mutate(change);
      }}
    >
      <h2 id={id}>{title}</h2>
      {children}
      {saving.isError && <ErrorNote error={saving.error} />}
      <div>
        <Button type="submit" look="primary" busy={saving.isPending} disabled={change === null}>
          Save
        </Button>
      </div>
      {Object.values(command).some((value) => value !== '') && (
        <CommandLine command={(name) => COMMANDS.updateProject(name, { ...COMMAND, ...command })} />
      )}
    </form>
  );
}

function General({ project }: { project: ProjectDetails }) {
  const [name, setName] = useState(project.name);
  return (
    <Part
      project={project}
      title="General"
      change={name === project.name ? null : { name }}
      command={{ name }}
    >
      <Field label="Name" value={name} onChange={(event) => setName(event.target.value)} required />
    </Part>
  );
}

function Limits({ project }: { project: ProjectDetails }) {
  const before = {
    quota: String(project.storage_quota_gib),
    attempts: String(project.connection_attempts_per_minute),
  };
  const [{ quota, attempts }, set] = useState(before);
  const change = {
    ...(quota !== before.quota && { storage_quota_gib: Number(quota) }),
    ...(attempts !== before.attempts && { connection_attempts_per_minute: Number(attempts) }),
  };
  return (
    <Part
      project={project}
      title="Limits"
      change={Object.keys(change).length === 0 ? null : change}
      command={{ quota, attempts }}
    >
      <Field
        label="Storage quota in GiB"
        hint="Shared by all branches of the project."
        type="number"
        min="0.001"
        step="any"
        value={quota}
        onChange={(event) => set({ quota: event.target.value, attempts })}
        required
      />
      <Field
        label="Connection attempts a minute"
        hint="To one branch from all admitted networks together, successful ones included. Branches with a limit of their own keep it."
        type="number"
        min="10"
        max="10000"
        value={attempts}
        onChange={(event) => set({ quota, attempts: event.target.value })}
        required
      />
    </Part>
  );
}

function SparesAndCommits({ project }: { project: ProjectDetails }) {
  const [spares, setSpares] = useState(String(project.spares));
  const [durability, setDurability] = useState(project.durability);
  const change = {
    ...(spares !== String(project.spares) && {
      spares: spares === 'auto' ? ('auto' as const) : Number(spares),
    }),
    ...(durability !== project.durability && { durability }),
  };
  return (
    <Part
      project={project}
      title="Spares and commits"
      change={Object.keys(change).length === 0 ? null : change}
      command={{
        spares: spares === String(project.spares) ? '' : spares,
        durability: durability === project.durability ? '' : durability,
      }}
    >
      <Field
        label="Spares of a snapshot"
        hint={sparesHint(project.spares_state)}
        pattern="auto|[0-9]|[12][0-9]|3[0-2]"
        value={spares}
        onChange={(event) => setSpares(event.target.value)}
        required
      />
      <SelectField
        label="Commits are confirmed"
        hint={DURABILITY_HINTS[durability === 'sync' ? project.durability_state : 'off']}
        value={durability}
        onChange={({ target }) => setDurability(target.value as typeof durability)}
      >
        <option value="async">once the database host has them</option>
        <option value="sync">once its standby has them too</option>
      </SelectField>
    </Part>
  );
}

function Data({ project }: { project: ProjectDetails }) {
  const [maskedOnly, setMaskedOnly] = useState(project.masked_only);
  const [passwords, setPasswords] = useState<'' | 'keep' | 'all' | 'all_but_main'>('');
  const isTurnedOn = maskedOnly && !project.masked_only;
  const rotation = isTurnedOn && passwords !== 'keep' ? passwords : '';
  return (
    <Part
      project={project}
      title="Data"
      change={
        maskedOnly === project.masked_only
          ? null
          : { masked_only: maskedOnly, ...(rotation !== '' && { rotate_credentials: rotation }) }
      }
      command={{ maskedOnly: choiceOf(project, maskedOnly), rotation }}
      onSaved={() => setPasswords('')}
    >
      <Check
        label="Give members masked data only"
        checked={maskedOnly}
        onChange={(event) => setMaskedOnly(event.target.checked)}
      />
      <p className="quiet small">Only owners, admins and API keys with data.full then see what is in main.</p>
      {isTurnedOn && (
        <SelectField
          label="Passwords that members have already"
          hint="They lead to the data of main and of the branches with unmasked data. New ones end their sessions, and applications need the new URLs."
          value={passwords}
          onChange={({ target }) => setPasswords(target.value as typeof passwords)}
          required
        >
          <option value="">choose…</option>
          <option value="all">replace all of them</option>
          <option value="all_but_main">replace those of branches, and keep those of main</option>
          <option value="keep">keep all of them</option>
        </SelectField>
      )}
    </Part>
  );
}

function Approvals({ project }: { project: ProjectDetails }) {
  const [approvals, setApprovals] = useState(project.change_approvals);
  const isChanged = approvals !== project.change_approvals;
  return (
    <Part
      project={project}
      title="Changes of main"
      change={isChanged ? { change_approvals: approvals } : null}
      command={{ approvals: isChanged ? String(approvals) : '' }}
    >
      <SelectField
        label="Approvals that a change needs"
        hint="Of people who could apply it, its author not among them."
        value={approvals}
        onChange={({ target }) => setApprovals(Number(target.value))}
      >
        <option value={0}>none</option>
        <option value={1}>one</option>
        <option value={2}>two</option>
      </SelectField>
    </Part>
  );
}

/** Each part is saved on its own. */
function Parts({ project }: { project: ProjectDetails }) {
  const session = useStore(sessionStore);
  const isAdmin = session.state === 'signed_in' && mayAdminister(session.me);
  return (
    <>
      <General project={project} />
      <Limits project={project} />
      <SparesAndCommits project={project} />
      {isAdmin && <Data project={project} />}
      {isAdmin && <Approvals project={project} />}
    </>
  );
}

function DeleteProject({ project, onClose }: { project: Project; onClose: () => void }) {
  const navigate = useNavigate();
  return (
    <ActionDialog
      title={`Delete ${project.name}?`}
      action="Delete project"
      isDangerous
      typed={[project.name]}
      run={() =>
        dataOf(api.DELETE('/api/v1/projects/{project_id}', { params: { path: { project_id: project.id } } }))
      }
      onDone={async ({ recoverable_until: until }) => {
        announce(
          `${project.name} is being deleted.${until === null ? '' : ` The copies of its host have its data until ${dateTime(until)}.`}`,
        );
        await navigate({ to: '/' });
        refresh(projectsQuery());
      }}
      onClose={onClose}
      command={COMMANDS.deleteProject}
    >
      <Note tone="bad">All databases of the project are dropped, main included. This cannot be undone.</Note>
    </ActionDialog>
  );
}

/** The operator moves projects, by a secret that no browser has. */
function Moving({ projectId }: { projectId: string }) {
  const jobs = useQuery(jobsQuery(projectId)).data ?? [];
  const move = jobs.find(({ kind }) => kind === 'project.move');
  if (move?.status !== 'queued' && move?.status !== 'running') return null;
  return (
    <section className="card padded stack" aria-labelledby="moving">
      <h2 id="moving">The project moves to another database host</h2>
      <p className="quiet">
        Passwords, rules and names stay. Branches cannot be created, reset or deleted meanwhile, and a copied
        branch can only be read. At the end nobody can connect for about a second.
      </p>
      <JobSteps job={move} />
    </section>
  );
}

export const Route = createFileRoute('/_inside/projects/$projectId/settings')({ component: SettingsPage });

function SettingsPage() {
  const { projectId } = Route.useParams();
  const project = useQuery(projectQuery(projectId));
  const session = useStore(sessionStore);
  const mayEdit = session.state === 'signed_in' && mayChange(session.me);
  const [isDeleting, setDeleting] = useState(false);
  return (
    <Page title={TEXT.nav.settings} width="narrow">
      <Loaded query={project}>
        {(data) => (
          <>
            {mayEdit ? <Parts key={data.id} project={data} /> : <Note>{TEXT.states.readOnly}</Note>}
            <dl className="card padded facts">
              <div>
                <dt>Project ID</dt>
                <dd className="mono small">{data.id}</dd>
              </div>
              <div>
                <dt>Main database</dt>
                <dd className="mono small">
                  db_{data.app_key}_{data.env}
                </dd>
              </div>
              <div>
                <dt>Database host</dt>
                <dd className="mono small">{[data.host, data.region].filter(Boolean).join(', ')}</dd>
              </div>
            </dl>
            <Moving projectId={projectId} />
            {mayEdit && (
              <section className="card padded row" aria-labelledby="danger">
                <div className="grow">
                  <h2 id="danger">Delete project</h2>
                  <p className="quiet">
                    All databases of the project are dropped, main included. This cannot be undone.
                  </p>
                </div>
                <Button look="danger" icon="trash" onClick={() => setDeleting(true)}>
                  Delete project
                </Button>
              </section>
            )}
            {isDeleting && <DeleteProject project={data} onClose={() => setDeleting(false)} />}
          </>
        )}
      </Loaded>
    </Page>
  );
}
