import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { rulesQuery, tablesQuery } from '../../data/resources.ts';

const MAIN = 'main';

interface StepProps {
  isDone: boolean;
  children: ReactNode;
}

const Step = ({ isDone, children }: StepProps) => (
  <li data-state={isDone ? 'succeeded' : 'queued'}>
    <span className="visually-hidden">{isDone ? 'Done: ' : 'To do: '}</span>
    {children}
  </li>
);

interface Props {
  projectId: string;
  /** A client has connected. */
  isUsed: boolean;
}

/** What a new project still lacks. Each step checks itself; the list is gone with the first branch. */
export function FirstSteps({ projectId, isUsed }: Props) {
  const rules = useQuery(rulesQuery(projectId)).data ?? [];
  const tables = useQuery({ ...tablesQuery(projectId, MAIN), refetchInterval: 10_000 }).data ?? [];
  const ofMain = { projectId, branch: MAIN };
  return (
    <section className="card padded stack" aria-labelledby="first-steps">
      <h2 id="first-steps">First steps</h2>
      <ol className="steps">
        <Step isDone={rules.length > 0}>
          <Link to="/projects/$projectId/network-rules" params={{ projectId }}>
            Let your computer connect
          </Link>
        </Step>
        <Step isDone={isUsed || tables.length > 0}>
          <Link to="/projects/$projectId/branches/$branch/connect" params={ofMain}>
            Copy the connection URL, with its certificate
          </Link>
        </Step>
        <Step isDone={tables.length > 0}>
          <Link to="/projects/$projectId/branches/$branch/sql" params={ofMain}>
            Create the first table
          </Link>
        </Step>
        <Step isDone={false}>
          <Link to="/projects/$projectId/create-branch" params={{ projectId }}>
            Create the first branch
          </Link>
        </Step>
      </ol>
    </section>
  );
}
