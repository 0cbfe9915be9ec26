import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { createFileRoute, Link } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { isFreshSnapshot } from '../../../client/find-branch.ts';
import { bytes, dateTime, labelsOf, milliseconds } from '../../../shared/format.ts';
import { snapshotLabel } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { detailsOf, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Check, Choice, Field, SelectField } from '../../components/field.tsx';
import { Icon } from '../../components/icon.tsx';
import { JobSteps } from '../../components/job-steps.tsx';
import { Page } from '../../components/page.tsx';
import { gateway } from '../../data/gateway.ts';
import {
  AT_ONCE,
  branchesQuery,
  directSessionsQuery,
  type Job,
  type Lifespan,
  otherAddressQuery,
  projectQuery,
  rulesQuery,
  snapshotsQuery,
  usageQuery,
} from '../../data/resources.ts';
import { texts } from '../../data/search.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { LIFESPANS, TEXT } from '../../strings/common.ts';
import { sourcesOf } from '../branches/branch-rows.ts';
import { Snippets } from '../connect/snippets-view.tsx';
import './create-branch.css';

/** PostgreSQL cuts longer names. */
const MAX_BYTES = 63;
const LENGTH = { min: 3, max: 48 };

/** Branch names are ASCII, so their characters are bytes. */
const lengthOf = (name: string): number => name.length;

/** What is wrong with the name of a branch, as far as it is known without asking the gateway. */
function nameProblem(name: string, longest: number): string | null {
  if (!/^[a-z0-9_-]*$/.test(name)) return 'Use lowercase letters, digits, hyphen and underscore.';
  if (name === 'main') return 'main is reserved.';
  if (name.length < LENGTH.min) return `Use at least ${LENGTH.min} characters.`;
  const most = Math.min(longest, LENGTH.max);
  return name.length > most ? `Use at most ${most} characters in this project.` : null;
}

/** A time as the field for it takes it; empty for none. */
function localTime(text: string): string {
  const at = new Date(text);
  const shifted = new Date(at.getTime() - 60_000 * at.getTimezoneOffset());
  return Number.isNaN(shifted.getTime()) ? '' : shifted.toISOString().slice(0, 'YYYY-MM-DDTHH:MM:SS'.length);
}

/** From the first step to the end of the last one. */
function jobMilliseconds(job: Job): number | null {
  const starts = job.steps.flatMap(({ started_at }) => (started_at ? [Date.parse(started_at)] : []));
  const ends = job.steps.flatMap(({ finished_at }) => (finished_at ? [Date.parse(finished_at)] : []));
  return starts.length > 0 && ends.length > 0 ? Math.max(...ends) - Math.min(...starts) : null;
}

interface CreatedProps {
  projectId: string;
  creation: Schemas['BranchCreation'];
  job: Job | null;
}

/** The end of a creation: how long it took, and how to connect. */
function Created({ projectId, creation, job }: CreatedProps) {
  const { branch_name: branch, credentials } = creation;
  const length = job && jobMilliseconds(job);
  return (
    <Page
      title={`${branch} is ready`}
      about={
        length === null ? undefined : `Created in ${milliseconds(length)}. Its connection URLs work now.`
      }
      width="narrow"
      actions={
        <>
          <Link
            to="/projects/$projectId/branches/$branch/tables"
            params={{ projectId, branch }}
            className="button"
          >
            <Icon name="table" /> {TEXT.nav.tables}
          </Link>
          <Link to="/projects/$projectId" params={{ projectId }} className="button primary">
            <Icon name="branch" /> {TEXT.nav.branches}
          </Link>
        </>
      }
    >
      {job && (
        <div className="card padded">
          <JobSteps job={job} />
        </div>
      )}
      {credentials ? (
        <Snippets credentials={credentials} />
      ) : (
        <Note>Open Connect to see the connection URLs.</Note>
      )}
    </Page>
  );
}

type Data = Schemas['Branch']['data'];
const DATA: readonly (readonly [value: Data, label: string])[] = [
  ['full', 'All of it'],
  ['masked', 'Masked'],
  ['none', 'None'],
];

export interface Wanted {
  name: string;
  source: { source_branch_id: string; data: Data; at?: string } | { snapshot_id: string };
  lifespan: Lifespan;
  allow: string[];
  labels: Record<string, string>;
}

/** Creates a branch and follows the job that does it. */
function useCreation(projectId: string) {
  const client = useQueryClient();
  const [job, setJob] = useState<Job | null>(null);
  const creation = useMutation({
    mutationFn: ({ name, source, ...rest }: Wanted) => {
      setJob(null);
      const body = {
        branch_name: name,
        ...source,
        include: ['credentials' as const],
        ...rest,
      };
      const params = { path: { project_id: projectId }, ...AT_ONCE };
      const init = { params, body };
      return gateway.create('/api/v1/projects/{project_id}/branches', init, { onProgress: setJob });
    },
    onSettled: () => {
      client.invalidateQueries({ queryKey: branchesQuery(projectId).queryKey });
      client.invalidateQueries({ queryKey: projectQuery(projectId).queryKey });
      client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey });
    },
  });
  return { creation, job };
}

/** How much of PostgreSQL's 63 bytes the database name takes. */
function NameBudget({ name, longest }: { name: string; longest: number }) {
  const used = MAX_BYTES - longest + lengthOf(name);
  const isOver = used > MAX_BYTES;
  return (
    <span className="name-budget" data-over={isOver}>
      <span className="meter">
        <i style={{ width: `${Math.min(100, (100 * used) / MAX_BYTES)}%` }} />
      </span>
      {used} of {MAX_BYTES} bytes of the database name
    </span>
  );
}

export const Route = createFileRoute('/_inside/projects/$projectId/create-branch')({
  validateSearch: texts('from', 'snapshot', 'at'),
  component: CreateBranchPage,
});

function CreateBranchPage() {
  const { projectId } = Route.useParams();
  const { from, snapshot, at: wanted } = Route.useSearch();
  const branches = useQuery(branchesQuery(projectId));
  const project = useQuery(projectQuery(projectId)).data;
  const [name, setName] = useState('');
  const snapshots = useQuery(snapshotsQuery(projectId)).data ?? [];
  /** The name of a branch, or the ID of a snapshot; null until it is chosen. */
  const [chosen, setSource] = useState(snapshot ?? from ?? null);
  const main = branches.data?.find(({ is_default }) => is_default)?.id;
  const fresh = snapshots.find((each) => each.branch_id === main && isFreshSnapshot(each));
  // A snapshot has no other time than its own.
  const source = chosen ?? (wanted === undefined ? fresh?.id : undefined) ?? 'main';
  const [lifespan, setLifespan] = useState<Lifespan>('7d');
  /** As the control has it: a time of this computer's clock; empty: now. */
  const [at, setAt] = useState(wanted === undefined ? '' : localTime(wanted));
  const [data, setData] = useState<Data>('full');
  const [allowMe, setAllowMe] = useState(true);
  const [networks, setNetworks] = useState('');
  const [labels, setLabels] = useState('');
  const { creation, job } = useCreation(projectId);
  const isSnapshot = snapshots.some(({ id }) => id === source);
  const ending = useQuery(directSessionsQuery(projectId, source, !isSnapshot)).data;
  const usage = useQuery(usageQuery(projectId)).data;
  const counted = isSnapshot
    ? usage?.snapshots.find(({ snapshot_id }) => snapshot_id === source)
    : usage?.branches.find(({ branch_name }) => branch_name === source);
  const counts =
    usage && counted?.next_branch_bytes
      ? ` The branch counts ${bytes(counted.next_branch_bytes)} against the quota, of which ${bytes(usage.storage_used_bytes)} of ${bytes(usage.storage_limit_bytes)} are used.`
      : '';
  const recoverable = isSnapshot ? null : (project?.recoverable ?? null);
  const moment = recoverable && at !== '' ? new Date(at).toISOString() : '';
  const sourceHint = isSnapshot
    ? 'Nobody has to wait: a snapshot has no sessions.'
    : moment !== ''
      ? `The branch gets what ${source} had then, and no session ends.`
      : `The branch gets a copy of ${source} as it is now.${ending ? ` ${ending} direct ${ending === 1 ? 'session' : 'sessions'} of ${source} will end.` : ''}`;
  const longest = project?.max_slug_length ?? MAX_BYTES;
  const problem = name === '' ? null : nameProblem(name, longest);
  const other = useQuery(otherAddressQuery()).data ?? null;
  const allow = [...(allowMe ? ['me'] : []), ...networks.split(/[\s,]+/).filter(Boolean)];
  const details = detailsOf(creation.error);
  const serverProblem = (path: string) => details.find((detail) => detail.path.startsWith(path))?.message;

  if (creation.data) return <Created projectId={projectId} creation={creation.data} job={job} />;
  return (
    <Page
      title="Create branch"
      about="Clones a branch copy-on-write. Clients of the pooled URL of the source wait for a moment, and its direct sessions end. A snapshot has none."
      width="narrow"
    >
      <Loaded query={branches}>
        {(all) => (
          <form
            className="card padded stack"
            onSubmit={(event) => {
              event.preventDefault();
              const parent = all.find(({ branch_name }) => branch_name === source);
              if (creation.isPending || problem) return;
              creation.mutate({
                name,
                source: parent
                  ? { source_branch_id: parent.id, data, ...(moment !== '' && { at: moment }) }
                  : { snapshot_id: source },
                lifespan,
                allow: allowMe && other !== null ? [...allow, other] : allow,
                labels: labelsOf(labels),
              });
            }}
          >
            <Field
              label="Name"
              className="mono"
              value={name}
              onChange={(event) => setName(event.target.value.toLowerCase())}
              hint={project && <NameBudget name={name} longest={longest} />}
              problem={problem ?? serverProblem('branch_name')}
              spellCheck={false}
              autoComplete="off"
              required
              autoFocus
            />
            <SelectField
              label="Clone from"
              value={source}
              onChange={(event) => setSource(event.target.value)}
              hint={`${sourceHint}${counts}`}
            >
              <optgroup label={TEXT.nav.branches}>
                {sourcesOf(all).map(({ branch, label }) => (
                  <option key={branch.id} value={branch.branch_name}>
                    {label}
                  </option>
                ))}
              </optgroup>
              {snapshots.length > 0 && (
                <optgroup label={TEXT.nav.snapshots}>
                  {snapshots.map((each) => (
                    <option key={each.id} value={each.id}>
                      {snapshotLabel(each, all.find(({ id }) => id === each.branch_id)?.branch_name)}
                    </option>
                  ))}
                </optgroup>
              )}
            </SelectField>
            {recoverable && (
              <Field
                label="As it was at"
                type="datetime-local"
                step={1}
                value={at}
                onChange={(event) => setAt(event.target.value)}
                hint={`Leave it empty for now. Any second since ${dateTime(recoverable.from)} can be recovered, which takes longer than a clone.`}
                problem={serverProblem('at')}
              />
            )}
            {!isSnapshot && (
              <Choice
                legend="Data"
                name="data"
                options={DATA}
                value={data}
                onChange={setData}
                hint="Masked data has other values by the policy of the project. The first masked branch of a day takes longer. Without data, the branch has the tables alone."
              />
            )}
            <Choice
              legend="Expires after"
              name="lifespan"
              options={LIFESPANS}
              value={lifespan}
              onChange={setLifespan}
              hint="An expired branch accepts no connections. It can be extended before it is deleted."
            />
            <fieldset className="field">
              <legend>Who may connect</legend>
              <Check
                label="This computer"
                checked={allowMe}
                onChange={(event) => setAllowMe(event.target.checked)}
              />
              <Field
                label="Other networks"
                className="mono"
                placeholder="203.0.113.0/24"
                value={networks}
                onChange={(event) => setNetworks(event.target.value)}
                problem={serverProblem('allow')}
              />
            </fieldset>
            <Field
              label="Labels"
              className="mono"
              placeholder="pr=42 owner=ada"
              value={labels}
              onChange={(event) => setLabels(event.target.value)}
              problem={serverProblem('labels')}
            />
            {creation.isError && <ErrorNote error={creation.error} />}
            {creation.isPending && <JobSteps job={job} />}
            <div className="row">
              <Button type="submit" look="primary" icon="branch" busy={creation.isPending}>
                {creation.isPending ? 'Creating' : 'Create branch'}
              </Button>
              <Link to="/projects/$projectId" params={{ projectId }} className="button bare">
                Cancel
              </Link>
            </div>
          </form>
        )}
      </Loaded>
      <CommandLine
        command={(project) =>
          COMMANDS.createBranch({ project, name, source, isSnapshot, at: moment, data, lifespan, allow })
        }
      />
    </Page>
  );
}
