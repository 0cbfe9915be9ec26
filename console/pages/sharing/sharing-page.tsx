import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { SelectField } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import { membersQuery, projectMembersQuery } from '../../data/resources.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';

type Sharer = Schemas['ProjectMember'];
type Role = Sharer['role'];
const ROLES = [
  ['viewer', 'Look'],
  ['operator', 'Change'],
] as const;
/** Roles of the tenant with which a member sees every project. */
const SEE_ALL: readonly string[] = ['owner', 'admin'];

const share = (projectId: string, userId: string, role: Role) =>
  dataOf(
    api.PUT('/api/v1/projects/{project_id}/members/{user_id}', {
      params: { path: { project_id: projectId, user_id: userId } },
      body: { role },
    }),
  );

const roleOptions = ROLES.map(([role, label]) => (
  <option key={role} value={role}>
    {label}
  </option>
));

function ShareForm({ projectId, shared }: { projectId: string; shared: readonly Sharer[] }) {
  const members = useQuery(membersQuery());
  const [userId, setUserId] = useState('');
  const [role, setRole] = useState<Role>('viewer');
  const others = (members.data ?? []).filter(
    ({ id, role: inTenant }) => !SEE_ALL.includes(inTenant) && !shared.some(({ user_id }) => user_id === id),
  );
  const sharing = useMutation({
    mutationFn: () => share(projectId, userId, role),
    onSuccess: ({ email }) => {
      announce(`The project is shared with ${email}.`);
      setUserId('');
      refresh(projectMembersQuery(projectId));
    },
  });
  if (members.data && others.length === 0)
    return <Note>All members of the tenant have access already. Invite people on the page Members.</Note>;
  return (
    <form
      className="card padded stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (!sharing.isPending) sharing.mutate();
      }}
    >
      <div className="row form-row">
        <SelectField
          label="Member"
          value={userId}
          onChange={({ target }) => setUserId(target.value)}
          required
        >
          <option value="">Choose a member</option>
          {others.map(({ id, email }) => (
            <option key={id} value={id}>
              {email}
            </option>
          ))}
        </SelectField>
        <SelectField label="May" value={role} onChange={({ target }) => setRole(target.value as Role)}>
          {roleOptions}
        </SelectField>
        <Button type="submit" look="primary" busy={sharing.isPending}>
          Share
        </Button>
      </div>
      {sharing.isError && <ErrorNote error={sharing.error} />}
    </form>
  );
}

export const Route = createFileRoute('/_inside/projects/$projectId/sharing')({ component: SharingPage });

function SharingPage() {
  const { projectId } = Route.useParams();
  const shared = useQuery(projectMembersQuery(projectId));
  const [leaving, setLeaving] = useState<Sharer | null>(null);
  const change = useMutation({
    mutationFn: ({ id, role }: { id: string; role: Role }) => share(projectId, id, role),
    onSuccess: ({ email }) => announce(`The project is shared with ${email}.`),
    onSettled: () => refresh(projectMembersQuery(projectId)),
  });
  return (
    <Page
      title={TEXT.nav.sharing}
      about="Owners and admins of the tenant see every project. Share this one with other members."
      width="narrow"
    >
      <Loaded query={shared}>
        {(all) => (
          <>
            <ShareForm projectId={projectId} shared={all} />
            {change.isError && <ErrorNote error={change.error} />}
            <div className="card">
              {all.length === 0 ? (
                <Empty icon="people" title="Not shared">
                  <p>Its creator and the owners and admins of the tenant have access.</p>
                </Empty>
              ) : (
                <ListTable columns={['E-mail address', 'May', 'Since']}>
                  {all.map((sharer) => (
                    <tr key={sharer.user_id}>
                      <td>{sharer.email}</td>
                      <td>
                        <select
                          className="select"
                          aria-label={`Role of ${sharer.email}`}
                          value={sharer.role}
                          onChange={({ target }) =>
                            change.mutate({ id: sharer.user_id, role: target.value as Role })
                          }
                        >
                          {roleOptions}
                        </select>
                      </td>
                      <td className="quiet">{dateTime(sharer.created_at)}</td>
                      <td className="actions">
                        <Button
                          compact
                          look="bare"
                          icon="trash"
                          aria-label={`Stop sharing with ${sharer.email}`}
                          onClick={() => setLeaving(sharer)}
                        />
                      </td>
                    </tr>
                  ))}
                </ListTable>
              )}
            </div>
          </>
        )}
      </Loaded>
      <CommandLine command={COMMANDS.listProjectMembers(projectId)} />
      {leaving && (
        <ActionDialog
          title={`Stop sharing with ${leaving.email}`}
          action="Stop sharing"
          isDangerous
          run={() =>
            dataOf(
              api.DELETE('/api/v1/projects/{project_id}/members/{user_id}', {
                params: { path: { project_id: projectId, user_id: leaving.user_id } },
              }),
            )
          }
          onDone={() => {
            announce(`The project is no longer shared with ${leaving.email}.`);
            refresh(projectMembersQuery(projectId));
          }}
          onClose={() => setLeaving(null)}
        >
          <p>
            Passwords and network access that the member knows stay. Remove network rules and rotate passwords
            to end them.
          </p>
        </ActionDialog>
      )}
    </Page>
  );
}
