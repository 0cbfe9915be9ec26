import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { createFileRoute, Link, useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { announce, detailsOf, ErrorNote } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { JobSteps } from '../../components/job-steps.tsx';
import { Page } from '../../components/page.tsx';
import { gateway } from '../../data/gateway.ts';
import { AT_ONCE, type Job, projectsQuery, regionsQuery } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';

const DEFAULT_QUOTA_GIB = 0.25;

export const Route = createFileRoute('/_inside/new')({ component: NewProjectPage });

function NewProjectPage() {
  const navigate = useNavigate();
  const client = useQueryClient();
  const [name, setName] = useState('');
  const [appKey, setAppKey] = useState('');
  const [env, setEnv] = useState('prod');
  const [quota, setQuota] = useState(String(DEFAULT_QUOTA_GIB));
  const [region, setRegion] = useState('');
  const [extensionsText, setExtensions] = useState('');
  const extensions = extensionsText.split(/[\s,]+/).filter(Boolean);
  const regions = useQuery(regionsQuery()).data ?? [];
  const [job, setJob] = useState<Job | null>(null);
  const creation = useMutation({
    mutationFn: () => {
      const body = {
        name,
        env,
        storage_quota_gib: Number(quota),
        ...(appKey !== '' && { app_key: appKey }),
        ...(extensions.length > 0 && { extensions }),
        ...(region !== '' && { region }),
      };
      const init = { params: AT_ONCE, body };
      return gateway.create('/api/v1/projects', init, { onProgress: setJob });
    },
    onSuccess: ({ warning, ...project }) => {
      client.invalidateQueries({ queryKey: ['projects'] });
      announce([`${project.name} is ready.`, warning].filter(Boolean).join(' '));
      navigate({ to: '/projects/$projectId', params: { projectId: project.id } });
    },
  });
  const isTaken = useQuery(projectsQuery()).data?.some((project) => project.name === name.trim()) ?? false;
  const problemOf = (path: string) =>
    detailsOf(creation.error).find((detail) => detail.path === path)?.message;
  return (
    <Page
      title="New project"
      about="Creates the database main. It accepts no connections until you add a network rule."
      width="narrow"
    >
      <form
        className="card padded stack"
        onSubmit={(event) => {
          event.preventDefault();
          setJob(null);
          if (!creation.isPending) creation.mutate();
        }}
      >
        <Field
          label="Name"
          value={name}
          onChange={(event) => setName(event.target.value)}
          hint={isTaken && 'Another project has this name. The command line then needs the ID of either.'}
          problem={problemOf('name')}
          required
          autoFocus
        />
        <Field
          label="App key (optional)"
          hint="Part of every database name. Default: made from the name."
          className="mono"
          value={appKey}
          onChange={(event) => setAppKey(event.target.value)}
          problem={problemOf('app_key')}
        />
        <Field
          label="Environment"
          className="mono"
          value={env}
          onChange={(event) => setEnv(event.target.value)}
          problem={problemOf('env')}
          required
        />
        <Field
          label="Storage quota in GiB"
          hint="Shared by all branches of the project."
          type="number"
          min="0.001"
          step="any"
          value={quota}
          onChange={(event) => setQuota(event.target.value)}
          problem={problemOf('storage_quota_gib')}
          required
        />
        <Field
          label="Extensions (optional)"
          hint="Only those that the operator adds to a new project, such as postgis. They cannot be changed later."
          className="mono"
          value={extensionsText}
          onChange={(event) => setExtensions(event.target.value)}
          problem={problemOf('extensions')}
        />
        {regions.length > 0 && (
          <SelectField
            label="Region"
            hint="Where its databases are."
            value={region}
            onChange={(event) => setRegion(event.target.value)}
            problem={problemOf('region')}
          >
            <option value="">Any</option>
            {regions.map(({ name, accepts_projects: isOpen }) => (
              <option key={name} value={name} disabled={!isOpen}>
                {isOpen ? name : `${name} (full)`}
              </option>
            ))}
          </SelectField>
        )}
        {creation.isError && <ErrorNote error={creation.error} />}
        {creation.isPending && <JobSteps job={job} />}
        <div className="row">
          <Button type="submit" look="primary" busy={creation.isPending}>
            New project
          </Button>
          <Link to="/" className="button bare">
            Cancel
          </Link>
        </div>
      </form>
      <CommandLine command={COMMANDS.createProject(name, region, extensions)} />
    </Page>
  );
}
