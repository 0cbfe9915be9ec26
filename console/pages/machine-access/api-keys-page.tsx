import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../app/format.ts';
import { api } from '../../app/gateway.ts';
import { refresh } from '../../app/query-client.ts';
import { apiKeysQuery, projectsQuery } from '../../app/resources.ts';
import { Page } from '../../app/shell.tsx';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, Loaded } from '../../components/feedback.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { KEYS_TEXT } from '../../strings/keys.ts';
import { CreateKeyDialog } from './create-key-dialog.tsx';
import { NewKey } from './new-key.tsx';

type ApiKey = Schemas['ApiKey'];

function Limits({ apiKey, project }: { apiKey: ApiKey; project: string | undefined }) {
  const limits = [
    apiKey.role,
    apiKey.scopes.map((scope) => scope.split(':').at(-1)).join(', '),
    apiKey.project_id === null ? KEYS_TEXT.everyProject : (project ?? apiKey.project_id),
    apiKey.branch_pattern ?? '',
    apiKey.cidrs?.join(', ') ?? '',
  ];
  return (
    <span className="row">
      {limits.filter(Boolean).map((limit) => (
        <span className="badge plain" key={limit}>
          {limit}
        </span>
      ))}
    </span>
  );
}

export function ApiKeysPage() {
  const keys = useQuery(apiKeysQuery());
  const projects = useQuery(projectsQuery()).data ?? [];
  const [isCreating, setCreating] = useState(false);
  const [made, setMade] = useState<Schemas['CreatedApiKey'] | null>(null);
  const [leaving, setLeaving] = useState<ApiKey | null>(null);
  return (
    <Page
      title={TEXT.nav.keys}
      about={KEYS_TEXT.about}
      actions={
        <Button look="primary" icon="plus" onClick={() => setCreating(true)}>
          {KEYS_TEXT.create}
        </Button>
      }
    >
      {made && <NewKey made={made} onClose={() => setMade(null)} />}
      <Loaded query={keys}>
        {(all) => (
          <div className="card">
            {all.length === 0 ? (
              <Empty icon="key" title={KEYS_TEXT.none}>
                <p>{KEYS_TEXT.noneHint}</p>
              </Empty>
            ) : (
              <ListTable columns={KEYS_TEXT.columns}>
                {all.map((apiKey) => (
                  <tr key={apiKey.id}>
                    <td>
                      <div>{apiKey.name}</div>
                      <code className="small quiet">bg_{apiKey.id}…</code>
                    </td>
                    <td>
                      <Limits
                        apiKey={apiKey}
                        project={projects.find(({ id }) => id === apiKey.project_id)?.name}
                      />
                    </td>
                    <td className="quiet">
                      {apiKey.last_used_at === null ? TEXT.states.never : dateTime(apiKey.last_used_at)}
                    </td>
                    <td className="quiet">{dateTime(apiKey.expires_at)}</td>
                    <td className="actions">
                      <Button
                        compact
                        look="bare"
                        icon="trash"
                        aria-label={KEYS_TEXT.removeOf(apiKey.name)}
                        onClick={() => setLeaving(apiKey)}
                      />
                    </td>
                  </tr>
                ))}
              </ListTable>
            )}
          </div>
        )}
      </Loaded>
      <CommandLine command={COMMANDS.listKeys} />
      {isCreating && (
        <CreateKeyDialog
          projects={projects}
          onClose={() => setCreating(false)}
          onMade={(key) => {
            setCreating(false);
            setMade(key);
            refresh(apiKeysQuery());
          }}
        />
      )}
      {leaving && (
        <ActionDialog
          title={KEYS_TEXT.removeOf(leaving.name)}
          action={KEYS_TEXT.remove}
          isDangerous
          run={() =>
            dataOf(api.DELETE('/api/v1/api-keys/{key_id}', { params: { path: { key_id: leaving.id } } }))
          }
          onDone={() => {
            announce(KEYS_TEXT.removed);
            refresh(apiKeysQuery());
          }}
          onClose={() => setLeaving(null)}
          command={COMMANDS.revokeKey(leaving.id)}
        >
          <p>{KEYS_TEXT.removeHint}</p>
        </ActionDialog>
      )}
    </Page>
  );
}
