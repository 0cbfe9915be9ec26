import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Loaded } from '../../components/feedback.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { api } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import { oauthGrantsQuery, projectsQuery } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { Limits } from './limits.tsx';

type Grant = Schemas['OAuthGrant'];

interface Props {
  /** Of a user; left out: everybody whose clients the person may see. */
  userId?: string | null;
  /** What to call a user by the ID. */
  emailOf?: (userId: string) => string | undefined;
}

/** The clients that people signed in by their browser, and how to sign one out. */
export function SignedInAgents({ userId, emailOf }: Props) {
  const grants = useQuery(oauthGrantsQuery());
  const projects = useQuery(projectsQuery()).data ?? [];
  const [leaving, setLeaving] = useState<Grant | null>(null);
  return (
    <section className="card" aria-labelledby="agents">
      <header>
        <h2 id="agents">Signed-in agents</h2>
      </header>
      <Loaded query={grants}>
        {(all) => {
          const shown = all.filter(({ created_by }) => userId === undefined || created_by === userId);
          if (shown.length === 0)
            return (
              <p className="body quiet">
                None. Add <code>{location.origin}/mcp</code> to an agent, and it asks here.
              </p>
            );
          return (
            <ListTable columns={['Agent', 'May', 'Last used', 'Expires']}>
              {shown.map((grant) => (
                <tr key={grant.id}>
                  <td>
                    <div>{grant.client_name}</div>
                    <span className="small quiet">
                      <code>{grant.redirect_host}</code>
                      {emailOf && ` · ${emailOf(grant.created_by) ?? grant.created_by}`}
                    </span>
                  </td>
                  <td>
                    <Limits of={grant} project={projects.find(({ id }) => id === grant.project_id)?.name} />
                  </td>
                  <td className="quiet">
                    {grant.last_used_at === null ? 'never' : dateTime(grant.last_used_at)}
                  </td>
                  <td className="quiet">{dateTime(grant.expires_at)}</td>
                  <td className="actions">
                    <Button
                      compact
                      aria-label={`Sign out ${grant.client_name}`}
                      onClick={() => setLeaving(grant)}
                    >
                      Sign out
                    </Button>
                  </td>
                </tr>
              ))}
            </ListTable>
          );
        }}
      </Loaded>
      {leaving && (
        <ActionDialog
          title={`Sign out ${leaving.client_name}`}
          action="Sign out"
          isDangerous
          run={() =>
            dataOf(
              api.DELETE('/api/v1/oauth-grants/{grant_id}', { params: { path: { grant_id: leaving.id } } }),
            )
          }
          onDone={() => {
            announce('The agent is signed out.');
            refresh(oauthGrantsQuery());
          }}
          onClose={() => setLeaving(null)}
          command={COMMANDS.revokeGrant(leaving.id)}
        >
          <p>It is refused within 10 seconds. Its branches stay.</p>
        </ActionDialog>
      )}
    </section>
  );
}
