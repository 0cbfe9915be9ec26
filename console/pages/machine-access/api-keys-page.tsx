import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine, Snippet } from '../../components/copy.tsx';
import { ActionDialog, Dialog } from '../../components/dialog.tsx';
import { announce, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Choice, Field, SelectField } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import {
  apiKeysQuery,
  membersQuery,
  type Project,
  projectsQuery,
  projectWord,
} from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { Limits } from './limits.tsx';
import { SignedInAgents } from './signed-in-agents.tsx';

const ROLES = [
  ['viewer', 'Viewer'],
  ['operator', 'Operator'],
  ['admin', 'Admin'],
  ['owner', 'Owner'],
] as const;
const SCOPES = [
  ['read', 'Read'],
  ['write', 'Read and write'],
] as const;
const DAYS = [
  ['7', `${7} days`],
  ['30', `${30} days`],
  ['90', `${90} days`],
  ['365', `${365} days`],
] as const;

interface CreateKeyProps {
  projects: readonly Project[];
  onClose: () => void;
  onMade: (key: Schemas['CreatedApiKey']) => void;
}

/** The least rights are selected: reading, one project, 30 days. */
function CreateKeyDialog({ projects, onClose, onMade }: CreateKeyProps) {
  const [name, setName] = useState('');
  const [role, setRole] = useState<(typeof ROLES)[number][0]>('viewer');
  const [scope, setScope] = useState<'read' | 'write'>('read');
  const [chosenId, setChosenId] = useState<string | null>(null);
  const [pattern, setPattern] = useState('');
  const [networks, setNetworks] = useState('');
  const [days, setDays] = useState<(typeof DAYS)[number][0]>('30');
  // The projects can arrive after the dialog was opened.
  const projectId = chosenId ?? projects[0]?.id ?? '';
  const cidrs = networks.split(/[\s,]+/).filter(Boolean);
  const creation = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/api-keys', {
          body: {
            name,
            role,
            scopes: [scope],
            project_id: projectId || null,
            branch_pattern: pattern || null,
            cidrs: cidrs.length > 0 ? cidrs : null,
            expires_in_days: Number(days),
          },
        }),
      ),
    onSuccess: onMade,
  });
  return (
    <Dialog
      title="New key"
      onClose={onClose}
      onSubmit={() => !creation.isPending && creation.mutate()}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" look="primary" busy={creation.isPending}>
            New key
          </Button>
        </>
      }
    >
      <Field
        label="Name"
        value={name}
        onChange={(event) => setName(event.target.value)}
        maxLength={100}
        required
        data-first-focus
      />
      <Choice legend="May" name="scope" options={SCOPES} value={scope} onChange={setScope} />
      <Choice legend="Role" name="role" options={ROLES} value={role} onChange={setRole} />
      <SelectField
        label={TEXT.nav.project}
        value={projectId}
        onChange={(event) => setChosenId(event.target.value)}
      >
        {projects.map((project) => (
          <option key={project.id} value={project.id}>
            {project.name}
          </option>
        ))}
        <option value="">Every project</option>
      </SelectField>
      <Field
        label="Only branches that match"
        hint="For instance pr-*. Empty: every branch."
        className="mono"
        placeholder="pr-*"
        value={pattern}
        onChange={(event) => setPattern(event.target.value)}
      />
      <Field
        label="Only from these networks (optional)"
        className="mono"
        placeholder="203.0.113.0/24"
        value={networks}
        onChange={(event) => setNetworks(event.target.value)}
      />
      <Choice legend="Expires in" name="days" options={DAYS} value={days} onChange={setDays} />
      {creation.isError && <ErrorNote error={creation.error} />}
      <CommandLine
        command={COMMANDS.createKey({
          name,
          role,
          isReadOnly: scope === 'read',
          project: projectId && projectWord(projects, projectId),
          pattern,
          cidrs,
          days,
        })}
      />
    </Dialog>
  );
}

/**
 * The only time that a key is shown, with where to put it; after a repeated request, what to do without it.
 */
const NewKey = ({ made, onClose }: { made: Schemas['CreatedApiKey']; onClose: () => void }) => (
  <section className="card" aria-label={`The key ${made.name}`}>
    <header>
      <h2>The key {made.name}</h2>
      <Button compact onClick={onClose}>
        {made.key === null ? 'Dismiss' : 'I have stored it'}
      </Button>
    </header>
    <div className="body stack">
      <Note tone="warn">
        {made.key === null
          ? 'The response with the key was lost, and it cannot be shown again. Delete this key and create another one.'
          : 'Copy the key now. It is stored nowhere and cannot be shown again.'}
      </Note>
      {made.key !== null && (
        <>
          <Snippet code={made.key} label="Copy the key" />
          <p className="quiet">Send it as a bearer token:</p>
          <Snippet
            code={`curl ${location.origin}/api/v1/projects -H "Authorization: Bearer $BRANCHGATE_TOKEN"`}
            label="Copy the command"
          />
        </>
      )}
    </div>
  </section>
);

type ApiKey = Schemas['ApiKey'];

export const Route = createFileRoute('/_inside/keys')({ component: ApiKeysPage });

function ApiKeysPage() {
  const keys = useQuery(apiKeysQuery());
  const projects = useQuery(projectsQuery()).data ?? [];
  const members = useQuery(membersQuery()).data ?? [];
  const [isCreating, setCreating] = useState(false);
  const [made, setMade] = useState<Schemas['CreatedApiKey'] | null>(null);
  const [leaving, setLeaving] = useState<ApiKey | null>(null);
  return (
    <Page
      title={TEXT.nav.keys}
      about="A program acts with a key in your name, with the rights that you give it."
      actions={
        <Button look="primary" icon="plus" onClick={() => setCreating(true)}>
          New key
        </Button>
      }
    >
      {made && <NewKey made={made} onClose={() => setMade(null)} />}
      <Loaded query={keys}>
        {(all) => (
          <div className="card">
            {all.length === 0 ? (
              <Empty icon="key" title="No API keys">
                <p>Create one for a script or a CI job. Prefer a workload trust where there is one.</p>
              </Empty>
            ) : (
              <ListTable columns={['Name', 'May', 'Last used', 'Expires']}>
                {all.map((apiKey) => (
                  <tr key={apiKey.id}>
                    <td>
                      <div>{apiKey.name}</div>
                      <code className="small quiet">bg_{apiKey.id}…</code>
                    </td>
                    <td>
                      <Limits
                        of={apiKey}
                        project={projects.find(({ id }) => id === apiKey.project_id)?.name}
                      />
                    </td>
                    <td className="quiet">
                      {apiKey.last_used_at === null ? 'never' : dateTime(apiKey.last_used_at)}
                    </td>
                    <td className="quiet">{dateTime(apiKey.expires_at)}</td>
                    <td className="actions">
                      <Button
                        compact
                        look="bare"
                        icon="trash"
                        aria-label={`Delete the key ${apiKey.name}`}
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
      <SignedInAgents emailOf={(userId) => members.find(({ id }) => id === userId)?.email} />
      <CommandLine command={COMMANDS.listGrants} />
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
          title={`Delete the key ${leaving.name}`}
          action="Delete key"
          isDangerous
          run={() =>
            dataOf(api.DELETE('/api/v1/api-keys/{key_id}', { params: { path: { key_id: leaving.id } } }))
          }
          onDone={() => {
            announce('The key is deleted.');
            refresh(apiKeysQuery());
          }}
          onClose={() => setLeaving(null)}
          command={COMMANDS.revokeKey(leaving.id)}
        >
          <p>Programs that use it are refused within 10 seconds.</p>
        </ActionDialog>
      )}
    </Page>
  );
}
