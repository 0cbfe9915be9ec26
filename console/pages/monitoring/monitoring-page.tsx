import { useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { dateTime, duration, plural, secondsSince } from '../../../shared/format.ts';
import { BranchName } from '../../components/branch.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, Loaded, Note } from '../../components/feedback.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { useLiveMeasurements } from '../../data/live.ts';
import { branchesQuery, checkpointsQuery, jobsQuery } from '../../data/resources.ts';
import { texts } from '../../data/search.ts';
import { mayAdminister, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { themeStore } from '../../data/theme.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { type Annotation, annotationsOf } from './annotations.ts';
import { Chart, type Reading, type Span } from './chart.tsx';
import {
  blocksQuery,
  CHARTS,
  type Chart as ChartKind,
  LAG_CHART,
  type Point,
  pointsOf,
  RANGE_NAMES,
  RANGES,
  type RangeName,
  seriesQuery,
} from './metrics.ts';

const METRICS = {
  active_connections: 'Active connections',
  cpu_seconds: 'CPU',
  total_connections: 'New connections',
  transactions_committed: 'Commits',
  transactions_rolled_back: 'Rollbacks',
  rows_fetched: 'Rows read',
  rows_inserted: 'Rows inserted',
  rows_updated: 'Rows updated',
  rows_deleted: 'Rows deleted',
  cache_hit_ratio: 'Cache hits',
  database_size_bytes: 'Size',
  file_count: 'Files',
  memory_bytes: 'Memory',
  longest_query_seconds: 'Longest query',
  connection_wait_seconds: 'Wait for a connection',
  dead_tuple_ratio: 'Dead rows',
  following_lag_seconds: 'Behind the source',
} as const;

/** Connections, CPU, commits and size answer most questions. */
const FIRST_SHOWN = 4;

/** What the lines in the charts mean. */
const Marks = ({ annotations }: { annotations: readonly Annotation[] }) => (
  <ul className="row marks" aria-label="Marks in the charts">
    {annotations.map(({ at, label }) => (
      <li key={`${at} ${label}`}>
        {label} <time className="quiet">{dateTime(new Date(at * 1000).toISOString())}</time>
      </li>
    ))}
  </ul>
);

function Freshness({ observedAt, stale }: { observedAt: string | null; stale: boolean }) {
  const now = useNow();
  if (observedAt === null) return <span className="badge busy">{TEXT.states.measuring}</span>;
  const age = duration(secondsSince(observedAt, now));
  return (
    <span className={stale ? 'badge warn' : 'badge good'} title={dateTime(observedAt)}>
      {TEXT.states.ago(age)}
    </span>
  );
}

interface PanelProps {
  chart: ChartKind;
  points: Point[];
  compared: Point[];
  range: Span;
  annotations: Annotation[];
  onZoom: (span: Span | null) => void;
}

const MOMENT = new Intl.DateTimeFormat('en-GB', {
  day: 'numeric',
  month: 'short',
  hour: '2-digit',
  minute: '2-digit',
});

function Panel({ chart, points, compared, range, annotations, onZoom }: PanelProps) {
  const [reading, setReading] = useState<Reading | null>(null);
  const last = points.at(-1);
  const shownValue = (value: number | null) => (value === null ? '–' : chart.format(value));
  const name = METRICS[chart.metric];
  return (
    <figure className="card panel">
      <figcaption>
        <span>{name}</span>
        {reading ? (
          <span className="reading">
            <time>{MOMENT.format(reading.at * 1000)}</time> <b>{shownValue(reading.values[0] ?? null)}</b>
            {compared.length > 0 && <b className="swatch-2">{shownValue(reading.values[1] ?? null)}</b>}
          </span>
        ) : (
          <b>{shownValue(last?.value ?? null)}</b>
        )}
      </figcaption>
      <p className="visually-hidden">
        {last
          ? `${plural(points.length, 'value')}, the last one is ${chart.format(last.value)}.`
          : 'No values in this time.'}
      </p>
      <Chart
        points={points}
        compared={compared}
        start={range.start}
        end={range.end}
        format={chart.format}
        steps={chart.steps}
        annotations={annotations}
        syncKey="monitoring"
        onRead={setReading}
        onZoom={onZoom}
      />
    </figure>
  );
}

/** Canvases are drawn again when their colours change. */
function useColorScheme(): string {
  const theme = useStore(themeStore);
  const [isDark, setDark] = useState(() => matchMedia('(prefers-color-scheme: dark)').matches);
  useEffect(() => {
    const query = matchMedia('(prefers-color-scheme: dark)');
    const listener = () => setDark(query.matches);
    query.addEventListener('change', listener);
    return () => query.removeEventListener('change', listener);
  }, []);
  return theme === 'system' ? String(isDark) : theme;
}

export const Route = createFileRoute('/_inside/projects/$projectId/branches/$branch/monitoring')({
  validateSearch: texts('range', 'compare', 'all'),
  component: MonitoringPage,
});

function MonitoringPage() {
  const { projectId, branch } = Route.useParams();
  const search = Route.useSearch();
  const navigate = Route.useNavigate();
  const scheme = useColorScheme();
  const range = RANGE_NAMES.find((name) => name === search.range) ?? '1h';
  const branches = useQuery(branchesQuery(projectId)).data ?? [];
  const record = branches.find(({ branch_name }) => branch_name === branch);
  const others = branches.filter(({ branch_name, status }) => branch_name !== branch && status === 'active');
  const compare = others.find(({ branch_name }) => branch_name === search.compare)?.branch_name;
  const [zoom, setZoom] = useState<Span | null>(null);
  const isLive = useLiveMeasurements(projectId, branch);
  const series = useQuery(seriesQuery(projectId, branch, range, isLive));
  const compared = useQuery({
    ...seriesQuery(projectId, compare ?? branch, range, false),
    enabled: compare !== undefined,
  }).data;
  const jobs = useQuery(jobsQuery(projectId)).data;
  const checkpoints = useQuery(checkpointsQuery(projectId, branch)).data;
  const session = useStore(sessionStore);
  const mayReadAudit = session.state === 'signed_in' && mayAdminister(session.me);
  const blocks = useQuery({ ...blocksQuery(projectId), enabled: mayReadAudit }).data;
  const choose = (change: { range?: RangeName; compare?: string | undefined; all?: string | undefined }) => {
    if (change.range) setZoom(null);
    return navigate({ search: (before) => ({ ...before, ...change }) as never, replace: true });
  };
  return (
    <Page
      title={
        <>
          {TEXT.nav.monitoring} <BranchName name={branch} />
        </>
      }
      name={`Monitoring of ${branch}`}
      width="wide"
      actions={series.data && <Freshness observedAt={series.data.observed_at} stale={series.data.stale} />}
    >
      <div className="row monitoring-bar">
        <div className="tabs" role="group" aria-label="Time range">
          {RANGE_NAMES.map((name) => (
            <button
              type="button"
              key={name}
              aria-pressed={name === range}
              onClick={() => choose({ range: name })}
            >
              {name}
            </button>
          ))}
        </div>
        {others.length > 0 && (
          <label className="row compare">
            Compare with
            <select
              className="select"
              value={compare ?? ''}
              onChange={({ target }) => choose({ compare: target.value || undefined })}
            >
              <option value="">nothing</option>
              {others.map(({ id, branch_name }) => (
                <option key={id} value={branch_name}>
                  {branch_name}
                </option>
              ))}
            </select>
          </label>
        )}
        {compare !== undefined && (
          <span className="row legend">
            <span className="swatch-1">{branch}</span>
            <span className="swatch-2">{compare}</span>
          </span>
        )}
      </div>
      <Loaded query={series}>
        {(data) => {
          const end = Date.parse(data.end) / 1000;
          const shown = zoom ?? { start: end - RANGES[range], end };
          const annotations = record
            ? annotationsOf(
                { branch: record, jobs: jobs ?? [], checkpoints: checkpoints ?? [], blocks: blocks ?? [] },
                shown.start,
                shown.end,
              )
            : [];
          const panels = CHARTS.map((chart) => ({ chart, points: pointsOf(data.series, chart) }));
          const lag = { chart: LAG_CHART, points: pointsOf(data.series, LAG_CHART) };
          const known = [lag, ...panels].filter(({ points }) => points.length > 0);
          const drawn = search.all ? known : known.slice(0, FIRST_SHOWN);
          const empty = panels.filter(({ points }) => points.length === 0);
          return (
            <>
              {data.stale && data.observed_at !== null && <StaleNote observedAt={data.observed_at} />}
              {annotations.length > 0 && <Marks annotations={annotations} />}
              {drawn.length === 0 ? (
                <div className="card">
                  <Empty icon="graph" title={TEXT.states.measuring}>
                    <p>A branch is measured every minute. Its first values appear here shortly.</p>
                  </Empty>
                </div>
              ) : (
                <div className="panels" key={scheme}>
                  {drawn.map(({ chart, points }) => (
                    <Panel
                      key={chart.metric}
                      chart={chart}
                      points={points}
                      compared={compare === undefined ? [] : pointsOf(compared?.series, chart)}
                      range={shown}
                      annotations={annotations}
                      onZoom={setZoom}
                    />
                  ))}
                </div>
              )}
              <p className="row">
                {known.length > FIRST_SHOWN && (
                  <Button onClick={() => choose({ all: search.all ? undefined : 'yes' })}>
                    {search.all ? 'Show four charts' : `Show all ${known.length} charts`}
                  </Button>
                )}
                {zoom ? (
                  <Button onClick={() => setZoom(null)}>Show the whole time</Button>
                ) : (
                  <span className="quiet small">Drag in a chart to zoom.</span>
                )}
              </p>
              {search.all && drawn.length > 0 && empty.length > 0 && (
                <p className="quiet small">
                  Two measurements are needed for {empty.map(({ chart }) => METRICS[chart.metric]).join(', ')}
                  .
                </p>
              )}
            </>
          );
        }}
      </Loaded>
      <CommandLine command={(project) => COMMANDS.metrics(project, branch)} />
    </Page>
  );
}

function StaleNote({ observedAt }: { observedAt: string }) {
  const now = useNow();
  return <Note tone="warn">{TEXT.states.stale(duration(secondsSince(observedAt, now)))}</Note>;
}
