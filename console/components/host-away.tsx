import { useQuery } from '@tanstack/react-query';
import { useEffect, useState } from 'react';
import { isHostAway, queryClient } from '../data/query-client.ts';
import { usageQuery } from '../data/resources.ts';
import { Button } from './button.tsx';
import { Note } from './feedback.tsx';

const CLOCK = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });

/**
 * One note for all parts of a project's page that the host would have to answer. Once the host is connected again, the
 * page reads all that it shows.
 */
export function HostAwayNote({ projectId }: { projectId: string }) {
  const { data, refetch } = useQuery(usageQuery(projectId));
  const isAway = data?.host_connected === false;
  const [since, setSince] = useState<Date | null>(null);
  useEffect(() => {
    if (!isAway) return;
    setSince(new Date());
    return () => {
      setSince(null);
      queryClient.invalidateQueries();
    };
  }, [isAway]);
  // A read that fails knows it before the usage is read again.
  useEffect(() => {
    if (isAway) return;
    return queryClient.getQueryCache().subscribe(({ type, query }) => {
      if (type === 'updated' && isHostAway(query.state.fetchFailureReason)) refetch();
    });
  }, [isAway, refetch]);
  if (since === null) return null;
  return (
    <Note tone="warn" live>
      <p>
        The console has not reached the database host since {CLOCK.format(since)}. The databases may still
        answer at their connection URLs. This page continues by itself when the host is connected.
      </p>
      <div>
        <Button compact icon="refresh" onClick={() => refetch()}>
          Try again
        </Button>
      </div>
    </Note>
  );
}
