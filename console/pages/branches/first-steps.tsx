import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { Button } from '../../components/button.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { api } from '../../data/gateway.ts';
import { otherAddressQuery, ownAddressQuery, rulesQuery, tablesQuery } from '../../data/resources.ts';

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

/** One rule of the project for each address of this computer. */
function AllowComputer({ projectId }: { projectId: string }) {
  const client = useQueryClient();
  const own = useQuery(ownAddressQuery()).data ?? null;
  const other = useQuery(otherAddressQuery()).data ?? null;
  const addresses = [own, other].filter((address) => address !== null);
  const rule = useMutation({
    mutationFn: async () => {
      for (const cidr of addresses)
        await dataOf(
          api.POST('/api/v1/projects/{project_id}/network-rules', {
            params: { path: { project_id: projectId } },
            body: { cidr, description: 'Added in the console' },
          }),
        );
    },
    onSettled: () => client.invalidateQueries({ queryKey: rulesQuery(projectId).queryKey }),
  });
  if (addresses.length === 0)
    return (
      <Link to="/projects/$projectId/network-rules" params={{ projectId }}>
        Let your computer connect
      </Link>
    );
  return (
    <>
      <Button compact icon="shield" busy={rule.isPending} onClick={() => rule.mutate()}>
        Allow this computer: {addresses.join(' and ')}
      </Button>
      {rule.isError && <ErrorNote error={rule.error} />}
    </>
  );
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
        <Step isDone={tables.length > 0}>
          <Link to="/projects/$projectId/branches/$branch/sql" params={ofMain}>
            Create the first table
          </Link>
        </Step>
        <Step isDone={rules.length > 0}>
          {rules.length > 0 ? 'This computer may connect' : <AllowComputer projectId={projectId} />}
        </Step>
        <Step isDone={isUsed}>
          <Link to="/projects/$projectId/branches/$branch/connect" params={ofMain}>
            Copy the connection URL, with its certificate
          </Link>
        </Step>
        <Step isDone={false}>
          <Link to="/projects/$projectId/create-branch" params={{ projectId }}>
            Create the first branch
          </Link>
        </Step>
      </ol>
      <p className="small quiet">
        Everything here also works from a terminal: <code>npm pack ./cli</code> in the repository of
        branchgate makes the package, and <code>branchgate login {location.origin}</code> signs in.
      </p>
    </section>
  );
}
