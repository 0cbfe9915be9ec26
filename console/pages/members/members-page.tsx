import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../app/format.ts';
import { api } from '../../app/gateway.ts';
import { refresh } from '../../app/query-client.ts';
import { membersQuery } from '../../app/resources.ts';
import { sessionStore } from '../../app/session.ts';
import { Page } from '../../app/shell.tsx';
import { useStore } from '../../app/store.ts';
import { ActionDialog } from '../../components/action-dialog.tsx';
import { Button } from '../../components/button.tsx';
import { ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { announce } from '../../components/toast.tsx';
import { TEXT } from '../../strings/common.ts';
import { MEMBERS_TEXT } from '../../strings/members.ts';
import { ROLES_TEXT } from '../../strings/roles.ts';
import { Invitations } from './invitations.tsx';

type Member = Schemas['Member'];
type Role = 'owner' | 'admin' | 'operator' | 'viewer';
const ROLES: readonly Role[] = ['owner', 'admin', 'operator', 'viewer'];

export function MembersPage() {
  const members = useQuery(membersQuery());
  const session = useStore(sessionStore);
  const me = session.state === 'signed_in' ? session.me : null;
  const [leaving, setLeaving] = useState<Member | null>(null);
  const change = useMutation({
    mutationFn: ({ id, role }: { id: string; role: Role }) =>
      dataOf(api.PATCH('/api/v1/members/{user_id}', { params: { path: { user_id: id } }, body: { role } })),
    onSuccess: () => announce(MEMBERS_TEXT.changed),
    onSettled: () => refresh(membersQuery()),
  });
  const isManagedHere = me?.issuer === location.origin;
  return (
    <Page title={TEXT.nav.members} about={MEMBERS_TEXT.about}>
      {!isManagedHere && me && <Note>{MEMBERS_TEXT.managed(me.issuer)}</Note>}
      {change.isError && <ErrorNote error={change.error} />}
      <Loaded query={members}>
        {(all) => (
          <div className="card">
            <ListTable columns={MEMBERS_TEXT.columns}>
              {all.map((member) => {
                const isFixed = member.issuer !== location.origin || member.id === me?.id;
                return (
                  <tr key={member.id}>
                    <td>{member.email}</td>
                    <td>
                      {isFixed ? (
                        member.role
                      ) : (
                        <select
                          className="select"
                          aria-label={MEMBERS_TEXT.roleOf(member.email)}
                          value={member.role}
                          onChange={({ target }) =>
                            change.mutate({ id: member.id, role: target.value as Role })
                          }
                        >
                          {ROLES.map((role) => (
                            <option key={role} value={role}>
                              {ROLES_TEXT[role]}
                            </option>
                          ))}
                        </select>
                      )}
                    </td>
                    <td className="quiet">{dateTime(member.created_at)}</td>
                    <td className="actions">
                      {!isFixed && (
                        <Button
                          compact
                          look="bare"
                          icon="trash"
                          aria-label={MEMBERS_TEXT.removeOf(member.email)}
                          onClick={() => setLeaving(member)}
                        />
                      )}
                    </td>
                  </tr>
                );
              })}
            </ListTable>
          </div>
        )}
      </Loaded>
      {isManagedHere && <Invitations />}
      {leaving && (
        <ActionDialog
          title={MEMBERS_TEXT.removeOf(leaving.email)}
          action={MEMBERS_TEXT.remove}
          isDangerous
          run={() =>
            dataOf(api.DELETE('/api/v1/members/{user_id}', { params: { path: { user_id: leaving.id } } }))
          }
          onDone={() => {
            announce(MEMBERS_TEXT.removed);
            refresh(membersQuery());
          }}
          onClose={() => setLeaving(null)}
        >
          <p>{MEMBERS_TEXT.removeHint}</p>
        </ActionDialog>
      )}
    </Page>
  );
}
