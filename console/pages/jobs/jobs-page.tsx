import { useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { dateTime, duration, plural, secondsSince } from '../../../shared/format.ts';
import { BranchName } from '../../components/branch.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, Loaded, Note } from '../../components/feedback.tsx';
import { JobSteps } from '../../components/job-steps.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { branchesQuery, deletedBranchesQuery, type Job, jobsQuery } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import './jobs.css';

const STATUSES = { queued: 'Queued', running: 'Running', succeeded: 'Done', failed: 'Failed' } as const;
const KINDS = {
  'project.create': 'Create project',
  'branch.create': 'Create branches',
  'branch.delete': 'Delete branch',
  'branch.diff': 'Compare branches',
  'branch.try': 'Try statements',
  'change.rehearse': 'Rehearse change',
  'change.apply': 'Apply change',
  'change.undo': 'Undo change',
  'branch.import': 'Import',
  'follow.start': 'Begin to follow',
  'follow.cutover': 'Cut over',
  'follow.stop': 'Stop following',
  'branch.reset': 'Reset branch',
  'branch.restore': 'Restore branch',
  'branch.rename': 'Rename branch',
  'snapshot.create': 'Take snapshot',
  'snapshot.delete': 'Delete snapshot',
  'project.delete': 'Delete project',
  'project.move': 'Move to another host',
} as Record<string, string>;

const TONES: Record<Job['status'], string> = {
  queued: '',
  running: 'accent busy',
  succeeded: 'good',
  failed: 'bad',
};

const isOver = ({ status }: Job) => status === 'succeeded' || status === 'failed';
const secondsBetween = ({ created_at, updated_at }: Job) =>
  Math.max(0, Math.round((Date.parse(updated_at) - Date.parse(created_at)) / 1000));

function JobItem({ job, branch }: { job: Job; branch: string | undefined }) {
  const now = useNow();
  const isOpen = !isOver(job);
  return (
    <li className="card">
      <details open={isOpen}>
        <summary>
          <span className={`badge ${TONES[job.status]}`}>{STATUSES[job.status]}</span>
          <span className="job-kind">{KINDS[job.kind] ?? job.kind}</span>
          {branch !== undefined && <BranchName name={branch} />}
          {isOver(job) && (
            <span className="quiet" title="How long it took">
              {duration(secondsBetween(job))}
            </span>
          )}
          <span className="quiet job-age" title={dateTime(job.created_at)}>
            {TEXT.states.ago(duration(secondsSince(job.created_at, now)))}
          </span>
        </summary>
        <div className="body stack">
          {job.error && (
            <Note tone="bad">
              <p>{job.error.message}</p>
              <p className="small quiet">
                <code>{job.error.code}</code>
                {job.attempts > 0 && ` · ${plural(job.attempts, 'attempt')} failed`}
              </p>
            </Note>
          )}
          <JobSteps job={job} />
          <p className="small quiet">
            <code>{job.id}</code>
          </p>
        </div>
      </details>
    </li>
  );
}

export const Route = createFileRoute('/_inside/projects/$projectId/jobs')({ component: JobsPage });

function JobsPage() {
  const { projectId } = Route.useParams();
  const jobs = useQuery(jobsQuery(projectId));
  const branches = [
    ...(useQuery(branchesQuery(projectId)).data ?? []),
    ...(useQuery(deletedBranchesQuery(projectId)).data ?? []),
  ];
  return (
    <Page
      title={TEXT.nav.jobs}
      about="Long work on the databases of this project, newest first."
      width="narrow"
    >
      <Loaded query={jobs}>
        {(all) =>
          all.length === 0 ? (
            <div className="card">
              <Empty icon="clock" title="No jobs yet" />
            </div>
          ) : (
            <ul className="jobs">
              {all.map((job) => (
                <JobItem
                  key={job.id}
                  job={job}
                  branch={branches.find(({ id }) => id === job.branch_id)?.branch_name}
                />
              ))}
            </ul>
          )
        }
      </Loaded>
      <CommandLine command={COMMANDS.listJobs} />
    </Page>
  );
}
