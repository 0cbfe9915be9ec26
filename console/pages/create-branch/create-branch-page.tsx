import { useQuery } from '@tanstack/react-query';
import { Link, useParams, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { branchesQuery, type Lifespan, projectQuery, snapshotsQuery } from '../../app/resources.ts';
import { Page } from '../../app/shell.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { detailsOf, ErrorNote, Loaded } from '../../components/feedback.tsx';
import { Check, Choice, Field, SelectField } from '../../components/field.tsx';
import { JobSteps } from '../../components/job-steps.tsx';
import { snapshotLabel } from '../../components/snapshot-label.ts';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { CREATE_TEXT } from '../../strings/create.ts';
import { LIFESPANS } from '../../strings/lifespans.ts';
import { lengthOf, MAX_BYTES, nameProblem } from './branch-name.ts';
import { Created } from './created.tsx';
import { labelsOf } from './labels.ts';
import { sourcesOf } from './sources.ts';
import { useCreation } from './use-creation.ts';
import './create-branch.css';

/** How much of PostgreSQL's 63 bytes the database name takes. */
function NameBudget({ name, longest }: { name: string; longest: number }) {
  const used = MAX_BYTES - longest + lengthOf(name);
  const isOver = used > MAX_BYTES;
  return (
    <span className="name-budget" data-over={isOver}>
      <span className="meter">
        <i style={{ width: `${Math.min(100, (100 * used) / MAX_BYTES)}%` }} />
      </span>
      {CREATE_TEXT.budget(used, MAX_BYTES)}
    </span>
  );
}

export function CreateBranchPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId/create-branch' });
  const { from, snapshot } = useSearch({ from: '/inside/projects/$projectId/create-branch' });
  const branches = useQuery(branchesQuery(projectId));
  const project = useQuery(projectQuery(projectId)).data;
  const [name, setName] = useState('');
  const snapshots = useQuery(snapshotsQuery(projectId)).data ?? [];
  /** The name of a branch, or the ID of a snapshot. */
  const [source, setSource] = useState(snapshot ?? from ?? 'main');
  const [lifespan, setLifespan] = useState<Lifespan>('7d');
  const [allowMe, setAllowMe] = useState(true);
  const [networks, setNetworks] = useState('');
  const [labels, setLabels] = useState('');
  const { creation, job } = useCreation(projectId);
  const isSnapshot = snapshots.some(({ id }) => id === source);
  const sourceHint =
    source === 'main' ? CREATE_TEXT.sourceMain : isSnapshot ? CREATE_TEXT.sourceSnapshot : undefined;
  const longest = project?.max_slug_length ?? MAX_BYTES;
  const problem = name === '' ? null : nameProblem(name, longest);
  const allow = [...(allowMe ? ['me'] : []), ...networks.split(/[\s,]+/).filter(Boolean)];
  const details = detailsOf(creation.error);
  const serverProblem = (path: string) => details.find((detail) => detail.path.startsWith(path))?.message;

  if (creation.data) return <Created projectId={projectId} creation={creation.data} job={job} />;
  return (
    <Page title={CREATE_TEXT.title} about={CREATE_TEXT.about} width="narrow">
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
                source: parent ? { source_branch_id: parent.id } : { snapshot_id: source },
                lifespan,
                allow,
                labels: labelsOf(labels),
              });
            }}
          >
            <Field
              label={CREATE_TEXT.name}
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
              label={CREATE_TEXT.source}
              value={source}
              onChange={(event) => setSource(event.target.value)}
              hint={sourceHint}
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
            <Choice
              legend={BRANCHES_TEXT.life}
              name="lifespan"
              options={LIFESPANS}
              value={lifespan}
              onChange={setLifespan}
              hint={CREATE_TEXT.lifeHint}
            />
            <fieldset className="field">
              <legend>{CREATE_TEXT.allow}</legend>
              <Check
                label={CREATE_TEXT.allowMe}
                checked={allowMe}
                onChange={(event) => setAllowMe(event.target.checked)}
              />
              <Field
                label={CREATE_TEXT.networks}
                className="mono"
                placeholder="203.0.113.0/24"
                value={networks}
                onChange={(event) => setNetworks(event.target.value)}
                problem={serverProblem('allow')}
              />
            </fieldset>
            <Field
              label={CREATE_TEXT.labels}
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
                {creation.isPending ? CREATE_TEXT.creating : CREATE_TEXT.title}
              </Button>
              <Link to="/projects/$projectId" params={{ projectId }} className="button bare">
                {TEXT.actions.cancel}
              </Link>
            </div>
          </form>
        )}
      </Loaded>
      <CommandLine
        command={COMMANDS.createBranch({ projectId, name, source, isSnapshot, lifespan, allow })}
      />
    </Page>
  );
}
