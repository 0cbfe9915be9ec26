import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf, ResponseError } from '../../../client/response-error.ts';
import { bytes, duration } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine, Snippet } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Check, Field, SelectField } from '../../components/field.tsx';
import { JobSteps } from '../../components/job-steps.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { api, gateway } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import { branchesQuery, followQuery, type Job, jobPageQuery, jobsQuery } from '../../data/resources.ts';
import { mayAdminister, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { Chart } from '../monitoring/chart.tsx';
import { LAG_CHART, pointsOf, RANGES, seriesQuery } from '../monitoring/metrics.ts';

type Follow = Schemas['Follow'];
type Finding = Schemas['SourceFinding'];
type Use = 'follow' | 'import';

const PATH = '/api/v1/projects/{project_id}/follow';
const IMPORT = '/api/v1/projects/{project_id}/import';

const ofProject = (projectId: string) => ({ params: { path: { project_id: projectId } } });
const refreshAll = (projectId: string) =>
  refresh(followQuery(projectId), jobsQuery(projectId), branchesQuery(projectId));

/** What is wrong with a source, each with the statement that mends it. */
const Findings = ({ findings }: { findings: readonly Finding[] }) => (
  <ul className="stack" aria-label="Findings">
    {findings.map(({ severity, problem, object, message, statement }) => (
      <li key={`${problem} ${object} ${message}`}>
        <Note tone={severity === 'error' ? 'bad' : 'warn'}>
          <p>{message}</p>
          {statement !== null && <Snippet code={statement} label="Copy the statement" />}
        </Note>
      </li>
    ))}
  </ul>
);

/** The error of a check or a start, with all findings. */
function SourceError({ error }: { error: unknown }) {
  const isUnsuitable = error instanceof ResponseError && error.code === 'SOURCE_UNSUITABLE';
  if (!isUnsuitable) return <ErrorNote error={error} />;
  return (
    <>
      <Note tone="bad" live>
        The source cannot be used. This is everything that is wrong.
      </Note>
      <Findings findings={(error.fields.details ?? []) as Finding[]} />
    </>
  );
}

const count = (value: number) => value.toLocaleString('en');

const tablesOf = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

/** Checks a source, and begins to follow or to import it. */
function SourceForm({ projectId }: { projectId: string }) {
  const [use, setUse] = useState<Use>('follow');
  const [url, setUrl] = useState('');
  const [tables, setTables] = useState('');
  const named = tablesOf(tables);
  const body = { source_url: url.trim(), ...(named.length > 0 && { tables: named }) };
  const options = { ...ofProject(projectId), body };
  const check = useMutation({
    mutationFn: () =>
      use === 'follow'
        ? dataOf(api.POST(`${PATH}/probe`, options))
        : dataOf(api.POST(`${IMPORT}/probe`, { ...options, body: { ...body, jobs: 4 } })),
  });
  const start = useMutation({
    mutationFn: () =>
      use === 'follow'
        ? dataOf(api.POST(PATH, options))
        : dataOf(api.POST(IMPORT, { ...options, body: { ...body, jobs: 4 } })),
    onSuccess: () => {
      setUrl('');
      announce(use === 'follow' ? 'The copy begins.' : 'The import begins.');
      refreshAll(projectId);
    },
  });
  const forget = () => {
    check.reset();
    start.reset();
  };
  const { data } = check;
  return (
    <form
      className="card padded stack"
      aria-labelledby="source"
      onSubmit={(event) => {
        event.preventDefault();
        start.reset();
        if (!check.isPending && !start.isPending) check.mutate();
      }}
    >
      <div>
        <h2 id="source">A database elsewhere</h2>
        <p className="quiet">
          The database host connects to it, so its address has to be public. main has to be empty.
        </p>
      </div>
      <SelectField
        label="What to do"
        value={use}
        onChange={({ target }) => {
          forget();
          setUse(target.value as Use);
        }}
        hint={
          use === 'follow'
            ? 'Copies it, and then applies each change. Meanwhile main can only be read.'
            : 'Copies it once. Then main is an ordinary database.'
        }
      >
        <option value="follow">Follow it</option>
        <option value="import">Import it once</option>
      </SelectField>
      <Field
        label="URL"
        type="password"
        className="mono"
        value={url}
        onChange={({ target }) => {
          forget();
          setUrl(target.value);
        }}
        placeholder="postgresql://user:password@host:5432/database"
        hint="With the password, which is not shown again."
        autoComplete="off"
        spellCheck={false}
        required
      />
      <Field
        label="Tables"
        className="mono"
        value={tables}
        onChange={({ target }) => {
          forget();
          setTables(target.value);
        }}
        placeholder="book sales.invoice"
        hint="Empty: all of them."
        spellCheck={false}
      />
      <div className="row">
        <Button type="submit" icon="check" busy={check.isPending}>
          Check the source
        </Button>
        {data && (
          <Button look="primary" busy={start.isPending} onClick={() => start.mutate()}>
            {use === 'follow' ? 'Begin to follow' : 'Begin the import'}
          </Button>
        )}
      </div>
      {check.isError && <SourceError error={check.error} />}
      {start.isError && <SourceError error={start.error} />}
      {data && (
        <Note tone="good" live>
          PostgreSQL {data.source.version} at {data.source.host} can be used:{' '}
          {data.has_more ? 'more than ' : ''}
          {count(data.tables.length)} tables, {bytes(data.source.total_bytes)}.
        </Note>
      )}
      {data && data.warnings.length > 0 && <Findings findings={data.warnings} />}
      <CommandLine
        command={(project) =>
          use === 'follow' ? COMMANDS.follow(project, named) : COMMANDS.import(project, named)
        }
      />
    </form>
  );
}

const TABLE_STATES = {
  waiting: 'Waiting',
  copying: 'Copying',
  copied: 'Copied',
  following: 'Follows',
} as const;

interface TableRow {
  schema: string;
  table: string;
  state: keyof typeof TABLE_STATES;
  rows: number;
  percent: number;
}

const Tables = ({ tables }: { tables: readonly TableRow[] }) => (
  <div className="card">
    <ListTable columns={['Table', 'State', 'Rows', 'Done']} numbers={['Rows', 'Done']} hasActions={false}>
      {tables.map(({ schema, table, state, rows, percent }) => (
        <tr key={`${schema}.${table}`}>
          <td className="mono">
            {schema}.{table}
          </td>
          <td>{TABLE_STATES[state]}</td>
          <td className="number">{count(rows)}</td>
          <td className="number">{percent} %</td>
        </tr>
      ))}
    </ListTable>
  </div>
);

const STATES: Record<Follow['state'], readonly [name: string, tone: string]> = {
  copying: ['Copying', 'accent busy'],
  following: ['Following', 'good'],
  stopped: ['Stands still', 'bad'],
  cut_over: ['Cut over', ''],
  failed: ['Failed', 'bad'],
};

const orUnknown = (value: number | null, show: (value: number) => string) =>
  value === null ? '–' : show(value);

/** What main follows. */
function Source({ follow }: { follow: Follow }) {
  const { state, source, lag_bytes, lag_seconds, slot_bytes, problem } = follow;
  const [name, tone] = STATES[state];
  return (
    <section className="card padded stack" aria-labelledby="followed">
      <div className="row">
        <h2 id="followed" className="grow">
          <span className="mono">{source.database}</span> at <span className="mono">{source.host}</span>
        </h2>
        <span className={`badge ${tone}`}>{name}</span>
      </div>
      <dl className="facts">
        <div>
          <dt>Behind the source</dt>
          <dd>{orUnknown(lag_seconds, (seconds) => duration(Math.round(seconds)))}</dd>
        </div>
        <div>
          <dt>Not applied yet</dt>
          <dd>{orUnknown(lag_bytes, bytes)}</dd>
        </div>
        <div>
          <dt>WAL kept at the source</dt>
          <dd>{orUnknown(slot_bytes, bytes)}</dd>
        </div>
        <div>
          <dt>PostgreSQL</dt>
          <dd>{source.version}</dd>
        </div>
      </dl>
      {problem && (
        <Note tone={state === 'following' ? 'warn' : 'bad'} live>
          <p>
            {problem.table !== null && <code>{problem.table}</code>} {problem.message}
          </p>
          {problem.statement !== null && <Snippet code={problem.statement} label="Copy the statement" />}
        </Note>
      )}
    </section>
  );
}

const LAG_RANGE = '24h';

/** How far main was behind in the last day. */
function LagHistory({ projectId }: { projectId: string }) {
  const { data } = useQuery(seriesQuery(projectId, 'main', LAG_RANGE, false));
  const points = pointsOf(data?.series, LAG_CHART);
  if (!data || points.length === 0) return null;
  const end = Date.parse(data.end) / 1000;
  const peak = Math.max(...points.map(({ value }) => value));
  return (
    <figure className="card panel">
      <figcaption>
        <span>Behind the source in the last day</span>
        <b>at most {LAG_CHART.format(peak)}</b>
      </figcaption>
      <Chart
        points={points}
        compared={[]}
        start={end - RANGES[LAG_RANGE]}
        end={end}
        format={LAG_CHART.format}
        steps={LAG_CHART.steps}
        annotations={[]}
        syncKey="following"
      />
    </figure>
  );
}

type Act = 'apply' | 'cutover' | 'stop' | null;
const isOpen = ({ status }: Job) => status === 'queued' || status === 'running';

/** What can be done with what main follows. */
function Actions({ projectId, follow, jobs }: { projectId: string; follow: Follow; jobs: readonly Job[] }) {
  const [act, setAct] = useState<Act>(null);
  const [writesStopped, setWritesStopped] = useState(false);
  const close = () => setAct(null);
  const done = (text: string) => () => {
    announce(text);
    refreshAll(projectId);
  };
  const options = ofProject(projectId);
  const resume = useMutation({
    mutationFn: () => dataOf(api.POST(`${PATH}/resume`, options)),
    onSuccess: () => refreshAll(projectId),
  });
  const callOff = useMutation({
    mutationFn: () => dataOf(api.DELETE(`${PATH}/cutover`, options)),
    onSuccess: () => refreshAll(projectId),
  });
  const isCuttingOver = jobs.some((job) => job.kind === 'follow.cutover' && isOpen(job));
  const { state, source, problem } = follow;
  const waited = async (started: Promise<Job>, onProgress: (job: Job) => void) =>
    gateway.waitForJob((await started).id, { onProgress });
  return (
    <>
      <div className="row">
        {state === 'stopped' && (
          <Button look="primary" icon="refresh" busy={resume.isPending} onClick={() => resume.mutate()}>
            Resume
          </Button>
        )}
        {state === 'stopped' && problem?.code === 'schema' && (
          <Button onClick={() => setAct('apply')}>Apply the changes</Button>
        )}
        {state === 'following' && !isCuttingOver && (
          <Button look="primary" onClick={() => setAct('cutover')}>
            Cut over
          </Button>
        )}
        {isCuttingOver && (
          <Button look="danger" busy={callOff.isPending} onClick={() => callOff.mutate()}>
            Call the cut-over off
          </Button>
        )}
        {!isCuttingOver && (
          <Button look="danger" onClick={() => setAct('stop')}>
            {state === 'copying' ? 'Cancel' : 'Stop following'}
          </Button>
        )}
      </div>
      {resume.isError && <ErrorNote error={resume.error} />}
      {callOff.isError && <ErrorNote error={callOff.error} />}
      {act === 'apply' && (
        <ActionDialog
          title="Change the schema of main?"
          action="Apply and resume"
          isDangerous
          run={() => dataOf(api.POST(`${PATH}/resume`, { ...options, body: { apply_changes: true } }))}
          onDone={done('main has the schema of the source.')}
          onClose={close}
          command={(project) => COMMANDS.resumeFollowing(project, true)}
        >
          <p>
            Everything that differs becomes as it is at the source, and main follows again. What was dropped
            there is dropped here.
          </p>
          {problem?.statement != null && <Snippet code={problem.statement} label="Copy the statements" />}
        </ActionDialog>
      )}
      {act === 'cutover' && (
        <ActionDialog
          title="Cut over to main?"
          action="Cut over"
          isDangerous
          typed={[source.database]}
          run={(onProgress) => {
            const body = { writes_stopped: writesStopped };
            return waited(dataOf(api.POST(`${PATH}/cutover`, { ...options, body })), onProgress);
          }}
          onDone={done('main has taken over.')}
          onClose={() => {
            close();
            refreshAll(projectId);
          }}
          command={(project) => COMMANDS.cutOver(project, writesStopped)}
        >
          <p>
            <b>{source.database}</b> at {source.host} accepts no writes any more. main applies the last
            change, both sides are compared, and main opens. If they differ, everything is as before.
          </p>
          <Check
            label="I have stopped everything that writes there"
            checked={writesStopped}
            onChange={({ target }) => setWritesStopped(target.checked)}
          />
        </ActionDialog>
      )}
      {act === 'stop' && (
        <ActionDialog
          title={state === 'copying' ? 'Cancel the copy?' : 'Stop following?'}
          action={state === 'copying' ? 'Cancel the copy' : 'Stop following'}
          isDangerous
          run={() => dataOf(api.DELETE(PATH, options))}
          onDone={done('It stops. The jobs show its end.')}
          onClose={close}
          command={(project) => COMMANDS.stopFollowing(project)}
        >
          <p>
            {state === 'copying'
              ? 'Everything that was copied is removed, and main is open and empty again.'
              : 'main keeps the data that it has, and can be written. To follow again, begin in an empty project.'}
          </p>
        </ActionDialog>
      )}
    </>
  );
}

/** The import that is under way, or has ended last. */
function LastImport({ projectId, job, mayEdit }: { projectId: string; job: Job; mayEdit: boolean }) {
  const cancel = useMutation({
    mutationFn: () => dataOf(api.DELETE(IMPORT, ofProject(projectId))),
    onSuccess: () => refreshAll(projectId),
  });
  const tables = job.steps.find((step) => step.tables)?.tables ?? [];
  return (
    <section className="stack" aria-labelledby="import">
      <div className="row">
        <h2 id="import" className="grow">
          Import
        </h2>
        {mayEdit && isOpen(job) && (
          <Button look="danger" busy={cancel.isPending} onClick={() => cancel.mutate()}>
            Cancel the import
          </Button>
        )}
      </div>
      {cancel.isError && <ErrorNote error={cancel.error} />}
      {job.error && <Note tone="bad">{job.error.message}</Note>}
      <JobSteps job={job} />
      {tables.length > 0 && <Tables tables={tables} />}
    </section>
  );
}

/** The reasons of blocks of a main that follows, or will. */
const HOLDS = new Set<string>(['import', 'following']);

export const Route = createFileRoute('/_inside/projects/$projectId/following')({ component: FollowingPage });

function FollowingPage() {
  const { projectId } = Route.useParams();
  const session = useStore(sessionStore);
  const mayEdit = session.state === 'signed_in' && mayAdminister(session.me);
  const jobsRead = useQuery(jobPageQuery(projectId));
  const branches = useQuery(branchesQuery(projectId));
  const jobs = jobsRead.data?.jobs ?? [];
  const isHeld = (branches.data ?? []).some(({ blocked }) => blocked !== null && HOLDS.has(blocked.reason));
  const last = jobs.find(({ kind }) => kind.startsWith('follow.'));
  // A project has more jobs than are listed here.
  const isOlder = last === undefined && jobsRead.data?.next_cursor != null;
  const hasRecord = isOlder || (last && !(last.kind === 'follow.stop' && last.status === 'succeeded'));
  const isUnread = jobsRead.isError || branches.isError;
  const isKnown = jobsRead.isFetched && branches.isFetched;
  const followed = useQuery(
    followQuery(projectId, isKnown ? isHeld || hasRecord === true || isUnread : undefined),
  );
  const lastImport = jobs.find(({ kind }) => kind === 'branch.import');
  const start = jobs.find(({ kind }) => kind === 'follow.start');
  return (
    <Page
      title={TEXT.nav.following}
      about="main can take over the data of a PostgreSQL database elsewhere: once, or with each change until you cut over."
    >
      {!mayEdit && <Note>Owners and admins of the tenant can follow and import.</Note>}
      <Loaded query={followed}>
        {(follow) => {
          const isActive = follow !== null && ['copying', 'following', 'stopped'].includes(follow.state);
          const isImporting = lastImport !== undefined && isOpen(lastImport);
          return (
            <>
              {follow && <Source follow={follow} />}
              {follow && isActive && mayEdit && <Actions projectId={projectId} follow={follow} jobs={jobs} />}
              {follow?.state === 'copying' && start && <JobSteps job={start} />}
              {follow && isActive && follow.state !== 'copying' && <LagHistory projectId={projectId} />}
              {follow && follow.tables.length > 0 && <Tables tables={follow.tables} />}
              {!follow && !mayEdit && !lastImport && (
                <div className="card">
                  <Empty icon="database" title="main follows nothing" />
                </div>
              )}
              {!isActive && !isImporting && mayEdit && <SourceForm projectId={projectId} />}
              {lastImport && <LastImport projectId={projectId} job={lastImport} mayEdit={mayEdit} />}
            </>
          );
        }}
      </Loaded>
      {followed.data && <CommandLine command={COMMANDS.followStatus} />}
    </Page>
  );
}
