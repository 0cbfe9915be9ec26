import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { Button } from '../../components/button.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { api, gateway } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import { everyRecord, membersQuery } from '../../data/resources.ts';
import { sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { TEXT } from '../../strings/common.ts';
import { dateTime } from '../../strings/format.ts';
import { MEMBERS_TEXT } from '../../strings/members.ts';
import { ROLES_TEXT } from '../../strings/roles.ts';
import { SIGN_IN_TEXT } from '../../strings/sign-in.ts';

const INVITED_ROLES = ['viewer', 'operator', 'admin', 'owner'] as const;
type InvitedRole = (typeof INVITED_ROLES)[number];

const KEY = ['invitations'];

export function Invitations() {
  const client = useQueryClient();
  const invitations = useQuery({
    queryKey: KEY,
    queryFn: () => everyRecord(gateway.all('/api/v1/invitations', {})),
  });
  const [email, setEmail] = useState('');
  const [role, setRole] = useState<InvitedRole>('viewer');
  const refresh = () => client.invalidateQueries({ queryKey: KEY });
  const invitation = useMutation({
    mutationFn: () => dataOf(api.POST('/api/v1/invitations', { body: { email, role } })),
    onSuccess: () => {
      announce(MEMBERS_TEXT.invited(email));
      setEmail('');
      refresh();
    },
  });
  const revocation = useMutation({
    mutationFn: (id: string) =>
      dataOf(api.DELETE('/api/v1/invitations/{invitation_id}', { params: { path: { invitation_id: id } } })),
    onSuccess: refresh,
  });
  return (
    <section className="card" aria-labelledby="invitations">
      <header>
        <h2 id="invitations">{MEMBERS_TEXT.invitations}</h2>
      </header>
      <div className="body stack">
        <form
          className="row invite"
          onSubmit={(event) => {
            event.preventDefault();
            if (!invitation.isPending) invitation.mutate();
          }}
        >
          <Field
            label={SIGN_IN_TEXT.email}
            type="email"
            value={email}
            onChange={(event) => setEmail(event.target.value)}
            required
          />
          <SelectField
            label={ROLES_TEXT.role}
            value={role}
            onChange={({ target }) => setRole(target.value as InvitedRole)}
          >
            {INVITED_ROLES.map((each) => (
              <option key={each} value={each}>
                {ROLES_TEXT[each]}
              </option>
            ))}
          </SelectField>
          <Button type="submit" look="primary" busy={invitation.isPending}>
            {MEMBERS_TEXT.invite}
          </Button>
        </form>
        {invitation.isError && <ErrorNote error={invitation.error} />}
        {revocation.isError && <ErrorNote error={revocation.error} />}
        <Loaded query={invitations}>
          {(all) => (
            <ul className="stack tight">
              {all.map(({ id, email: to, role: as, expires_at }) => (
                <li className="row" key={id}>
                  <span className="grow">
                    {to} <span className="badge plain">{as}</span>
                  </span>
                  <span className="quiet small">{MEMBERS_TEXT.until(dateTime(expires_at))}</span>
                  <Button compact busy={revocation.isPending} onClick={() => revocation.mutate(id)}>
                    {MEMBERS_TEXT.revoke}
                  </Button>
                </li>
              ))}
            </ul>
          )}
        </Loaded>
      </div>
    </section>
  );
}

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
