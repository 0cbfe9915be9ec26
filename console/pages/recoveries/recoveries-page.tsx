import { queryOptions, useQuery } from '@tanstack/react-query';
import { createFileRoute, Link } from '@tanstack/react-router';
import { dataOf } from '../../../client/response-error.ts';
import { DRILL_PROBLEMS } from '../../../shared/drill-problems.ts';
import { dateTime, duration } from '../../../shared/format.ts';
import { snapshotLabel } from '../../components/branch.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, Loaded, Note } from '../../components/feedback.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { api } from '../../data/gateway.ts';
import {
  type AuditEvent,
  type Branch,
  branchesQuery,
  type Job,
  jobsQuery,
  type ProjectDetails,
  projectQuery,
  type Snapshot,
  snapshotsQuery,
} from '../../data/resources.ts';
import { mayAdminister, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { blocksQuery } from '../monitoring/metrics.ts';
import './recoveries.css';

const drillsQuery = (projectId: string) =>
  queryOptions({
    queryKey: ['recovery-drills', projectId],
    queryFn: ({ signal }) => {
      const params = { path: { project_id: projectId } };
      return dataOf(api.GET('/api/v1/projects/{project_id}/recovery-drills', { params, signal }));
    },
  });

/** Proofs of recoveries. */
function Drills({ projectId }: { projectId: string }) {
  const drills = useQuery(drillsQuery(projectId));
  return (
    <section className="card" aria-labelledby="drills">
      <header>
        <h2 id="drills">Drills</h2>
      </header>
      <Loaded query={drills}>
        {({ drills: all, overdue }) => (
          <>
            {overdue && <Note tone="bad">No drill has passed for two weeks. Contact the operator.</Note>}
            {all.length === 0 ? (
              <Empty icon="check" title="No drill yet">
                <p>Once a week the database host recovers main to a recorded time, and compares.</p>
              </Empty>
            ) : (
              <ListTable
                columns={['Drilled', 'Recovered to', 'Result', 'Rows', 'Took']}
                numbers={['Rows', 'Took']}
                hasActions={false}
              >
                {all.map(({ id, drilled_at, at, problem, rows, duration_ms }) => (
                  <tr key={id}>
                    <td>{dateTime(drilled_at)}</td>
                    <td>{dateTime(at)}</td>
                    <td>
                      <span className={`badge ${problem === null ? 'good' : 'bad'}`}>
                        {problem === null ? 'Passed' : 'Failed'}
                      </span>
                      {problem !== null && <div className="small quiet">{DRILL_PROBLEMS[problem]}</div>}
                    </td>
                    <td className="number">{rows}</td>
                    <td className="number">{duration(Math.ceil(duration_ms / 1000))}</td>
                  </tr>
                ))}
              </ListTable>
            )}
          </>
        )}
      </Loaded>
    </section>
  );
}

/** Jobs that are marks, in words before the name of the branch. */
const CHANGES = {
  'branch.reset': 'Reset',
  'branch.import': 'Import',
  'follow.cutover': 'Cut over',
  'project.move': 'Move to another host',
  'branch.try': 'Statements tried',
  'change.rehearse': 'Change rehearsed for',
  'change.apply': 'Change applied to',
  'change.undo': 'Change undone in',
} as Record<string, string>;

interface Mark {
  id: string;
  at: string;
  what: string;
  /** Name of its branch, as far as there still is one. */
  branch: string | undefined;
}

/** Events of the branches of a project, newest first. */
function marksOf(branches: Branch[], snapshots: Snapshot[], jobs: Job[], blocks: AuditEvent[]): Mark[] {
  const nameOf = (wanted: string | null) => branches.find(({ id }) => id === wanted)?.branch_name;
  const mark = (id: string, at: string, branchId: string | null, what: (branch?: string) => string) => {
    const branch = nameOf(branchId);
    return { id, at, branch, what: what(branch) };
  };
  const marks = [
    ...snapshots.map((snapshot) =>
      mark(
        snapshot.id,
        snapshot.taken_at,
        snapshot.branch_id,
        (name) => `Snapshot: ${snapshotLabel(snapshot, name)}`,
      ),
    ),
    ...jobs.flatMap(({ id, kind, created_at, branch_id }) => {
      const change = CHANGES[kind];
      return change ? [mark(id, created_at, branch_id, (name = '') => `${change} ${name}`)] : [];
    }),
    ...blocks.map(({ id, branch_id, created_at }) =>
      mark(id, created_at, branch_id, (name = '') => `Block ${name}`),
    ),
  ];
  return marks.sort((one, other) => other.at.localeCompare(one.at));
}

/** A branch from just before a mark. Milliseconds. */
const BEFORE_MS = 1000;

function TimeLine({ project }: { project: ProjectDetails }) {
  const session = useStore(sessionStore);
  const seesAudit = session.state === 'signed_in' && mayAdminister(session.me);
  const blocks = useQuery({ ...blocksQuery(project.id), enabled: seesAudit }).data ?? [];
  const now = useNow();
  const branches = useQuery(branchesQuery(project.id)).data ?? [];
  const snapshots = useQuery(snapshotsQuery(project.id)).data ?? [];
  const jobs = useQuery(jobsQuery(project.id)).data ?? [];
  const { recoverable } = project;
  if (!recoverable)
    return <Note>The database host of this project keeps no past. Take snapshots instead.</Note>;
  const from = Date.parse(recoverable.from);
  const marks = marksOf(branches, snapshots, jobs, blocks).filter(
    ({ at }) => Date.parse(at) > from + BEFORE_MS,
  );
  const placeOf = (at: string) => `${(100 * (Date.parse(at) - from)) / Math.max(1, now - from)}%`;
  return (
    <section className="card padded stack" aria-labelledby="window">
      <h2 id="window">Any second since {dateTime(recoverable.from)}</h2>
      <div className="time-line" aria-hidden="true">
        {marks.map(({ id, at, what }) => (
          <span key={id} style={{ left: placeOf(at) }} title={`${dateTime(at)} · ${what}`} />
        ))}
      </div>
      {marks.length === 0 ? (
        <p className="quiet">No snapshot, reset, import, move or block since then.</p>
      ) : (
        <ListTable columns={['Time', 'What']}>
          {marks.map(({ id, at, what, branch }) => (
            <tr key={id}>
              <td>{dateTime(at)}</td>
              <td>{what}</td>
              <td>
                <Link
                  to="/projects/$projectId/create-branch"
                  params={{ projectId: project.id }}
                  search={{
                    at: new Date(Date.parse(at) - BEFORE_MS).toISOString(),
                    ...(branch !== undefined && { from: branch }),
                  }}
                >
                  Branch from before
                </Link>
              </td>
            </tr>
          ))}
        </ListTable>
      )}
      <p className="small quiet">
        Everything that was committed up to a second, and nothing later. A new window begins when the project
        moves to another host.
      </p>
    </section>
  );
}

export const Route = createFileRoute('/_inside/projects/$projectId/recoveries')({
  component: RecoveriesPage,
});

function RecoveriesPage() {
  const { projectId } = Route.useParams();
  const project = useQuery(projectQuery(projectId));
  return (
    <Page
      title={TEXT.nav.recoveries}
      about="What a branch was at any second, and the proof that this works."
      width="narrow"
    >
      <Loaded query={project}>{(found) => <TimeLine project={found} />}</Loaded>
      <Drills projectId={projectId} />
      <CommandLine command={COMMANDS.listDrills} />
    </Page>
  );
}
