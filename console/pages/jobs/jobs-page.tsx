import { useQuery } from '@tanstack/react-query';
import { useParams } from '@tanstack/react-router';
import { BranchName } from '../../components/branch.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, Loaded, Note } from '../../components/feedback.tsx';
import { JobSteps } from '../../components/job-steps.tsx';
import { Page } from '../../components/page.tsx';
import { useNow } from '../../components/time.tsx';
import { branchesQuery, deletedBranchesQuery, type Job, jobsQuery } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { dateTime, duration, secondsSince } from '../../strings/format.ts';
import { JOBS_TEXT } from '../../strings/jobs.ts';
import './jobs.css';

const TONES: Record<Job['status'], string> = {
  queued: '',
  running: 'accent busy',
  succeeded: 'good',
  failed: 'bad',
};

function JobItem({ job, branch }: { job: Job; branch: string | undefined }) {
  const now = useNow();
  const isOpen = job.status === 'running' || job.status === 'queued' || job.status === 'failed';
  return (
    <li className="card">
      <details open={isOpen}>
        <summary>
          <span className={`badge ${TONES[job.status]}`}>{JOBS_TEXT.statuses[job.status]}</span>
          <span className="job-kind">{JOBS_TEXT.kinds[job.kind] ?? job.kind}</span>
          {branch !== undefined && <BranchName name={branch} />}
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
                {job.attempts > 0 && ` · ${JOBS_TEXT.attempts(job.attempts)}`}
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

export function JobsPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId/jobs' });
  const jobs = useQuery(jobsQuery(projectId));
  const branches = [
    ...(useQuery(branchesQuery(projectId)).data ?? []),
    ...(useQuery(deletedBranchesQuery(projectId)).data ?? []),
  ];
  return (
    <Page title={TEXT.nav.jobs} about={JOBS_TEXT.about} width="narrow">
      <Loaded query={jobs}>
        {(all) =>
          all.length === 0 ? (
            <div className="card">
              <Empty icon="clock" title={JOBS_TEXT.none} />
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
      <CommandLine command={COMMANDS.listJobs(projectId)} />
    </Page>
  );
}
