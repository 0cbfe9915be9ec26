import { useMutation, useQuery } from '@tanstack/react-query';
import { useParams } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
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
import { dateTime } from '../../strings/format.ts';
import { SHARING_TEXT } from '../../strings/sharing.ts';

type Sharer = Schemas['ProjectMember'];
type Role = Sharer['role'];
const ROLES: readonly Role[] = ['viewer', 'operator'];
/** Roles of the tenant with which a member sees every project. */
const SEE_ALL: readonly string[] = ['owner', 'admin'];

const share = (projectId: string, userId: string, role: Role) =>
  dataOf(
    api.PUT('/api/v1/projects/{project_id}/members/{user_id}', {
      params: { path: { project_id: projectId, user_id: userId } },
      body: { role },
    }),
  );

const roleOptions = ROLES.map((role) => (
  <option key={role} value={role}>
    {SHARING_TEXT.roles[role]}
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
      announce(SHARING_TEXT.shared(email));
      setUserId('');
      refresh(projectMembersQuery(projectId));
    },
  });
  if (members.data && others.length === 0) return <Note>{SHARING_TEXT.nobody}</Note>;
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
          label={SHARING_TEXT.member}
          value={userId}
          onChange={({ target }) => setUserId(target.value)}
          required
        >
          <option value="">{SHARING_TEXT.choose}</option>
          {others.map(({ id, email }) => (
            <option key={id} value={id}>
              {email}
            </option>
          ))}
        </SelectField>
        <SelectField
          label={SHARING_TEXT.role}
          value={role}
          onChange={({ target }) => setRole(target.value as Role)}
        >
          {roleOptions}
        </SelectField>
        <Button type="submit" look="primary" busy={sharing.isPending}>
          {SHARING_TEXT.add}
        </Button>
      </div>
      {sharing.isError && <ErrorNote error={sharing.error} />}
    </form>
  );
}

export function SharingPage() {
  const { projectId } = useParams({ from: '/inside/projects/$projectId/sharing' });
  const shared = useQuery(projectMembersQuery(projectId));
  const [leaving, setLeaving] = useState<Sharer | null>(null);
  const change = useMutation({
    mutationFn: ({ id, role }: { id: string; role: Role }) => share(projectId, id, role),
    onSuccess: ({ email }) => announce(SHARING_TEXT.shared(email)),
    onSettled: () => refresh(projectMembersQuery(projectId)),
  });
  return (
    <Page title={TEXT.nav.sharing} about={SHARING_TEXT.about} width="narrow">
      <Loaded query={shared}>
        {(all) => (
          <>
            <ShareForm projectId={projectId} shared={all} />
            {change.isError && <ErrorNote error={change.error} />}
            <div className="card">
              {all.length === 0 ? (
                <Empty icon="people" title={SHARING_TEXT.none}>
                  <p>{SHARING_TEXT.noneHint}</p>
                </Empty>
              ) : (
                <ListTable columns={SHARING_TEXT.columns}>
                  {all.map((sharer) => (
                    <tr key={sharer.user_id}>
                      <td>{sharer.email}</td>
                      <td>
                        <select
                          className="select"
                          aria-label={SHARING_TEXT.roleOf(sharer.email)}
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
                          aria-label={SHARING_TEXT.removeOf(sharer.email)}
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
          title={SHARING_TEXT.removeOf(leaving.email)}
          action={SHARING_TEXT.remove}
          isDangerous
          run={() =>
            dataOf(
              api.DELETE('/api/v1/projects/{project_id}/members/{user_id}', {
                params: { path: { project_id: projectId, user_id: leaving.user_id } },
              }),
            )
          }
          onDone={() => {
            announce(SHARING_TEXT.removed(leaving.email));
            refresh(projectMembersQuery(projectId));
          }}
          onClose={() => setLeaving(null)}
        >
          <p>{SHARING_TEXT.removeHint}</p>
        </ActionDialog>
      )}
    </Page>
  );
}
