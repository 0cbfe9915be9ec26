import { Link } from '@tanstack/react-router';
import type { Schemas } from '../../../client/client.ts';
import { milliseconds } from '../../app/format.ts';
import type { Job } from '../../app/resources.ts';
import { Page } from '../../app/shell.tsx';
import { Note } from '../../components/feedback.tsx';
import { Icon } from '../../components/icon.tsx';
import { JobSteps } from '../../components/job-steps.tsx';
import { TEXT } from '../../strings/common.ts';
import { CREATE_TEXT } from '../../strings/create.ts';
import { Snippets } from '../connect/snippets-view.tsx';

/** From the first step to the end of the last one. */
function lengthOf(job: Job): number | null {
  const starts = job.steps.flatMap(({ started_at }) => (started_at ? [Date.parse(started_at)] : []));
  const ends = job.steps.flatMap(({ finished_at }) => (finished_at ? [Date.parse(finished_at)] : []));
  return starts.length > 0 && ends.length > 0 ? Math.max(...ends) - Math.min(...starts) : null;
}

interface Props {
  projectId: string;
  creation: Schemas['BranchCreation'];
  job: Job | null;
}

/** The end of a creation: how long it took, and how to connect. */
export function Created({ projectId, creation, job }: Props) {
  const { branch_name: branch, credentials } = creation;
  const length = job && lengthOf(job);
  return (
    <Page
      title={CREATE_TEXT.done(branch)}
      about={length === null ? undefined : CREATE_TEXT.took(milliseconds(length))}
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
      {credentials ? <Snippets credentials={credentials} /> : <Note>{CREATE_TEXT.noCredentials}</Note>}
    </Page>
  );
}
