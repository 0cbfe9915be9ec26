import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../../shared/format.ts';
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

const ROLES = [
  ['viewer', 'Viewer'],
  ['operator', 'Operator'],
  ['admin', 'Admin'],
  ['owner', 'Owner'],
] as const;
type Role = (typeof ROLES)[number][0];

const roleOptions = ROLES.map(([role, name]) => (
  <option key={role} value={role}>
    {name}
  </option>
));

const KEY = ['invitations'];

function Invitations() {
  const client = useQueryClient();
  const invitations = useQuery({
    queryKey: KEY,
    queryFn: () => everyRecord(gateway.all('/api/v1/invitations', {})),
  });
  const [email, setEmail] = useState('');
  const [role, setRole] = useState<Role>('viewer');
  const refresh = () => client.invalidateQueries({ queryKey: KEY });
  const invitation = useMutation({
    mutationFn: () => dataOf(api.POST('/api/v1/invitations', { body: { email, role } })),
    onSuccess: () => {
      announce(`An invitation was sent to ${email}.`);
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
        <h2 id="invitations">Invitations</h2>
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
            label="E-mail address"
            type="email"
            value={email}
            onChange={(event) => setEmail(event.target.value)}
            required
          />
          <SelectField label="Role" value={role} onChange={({ target }) => setRole(target.value as Role)}>
            {roleOptions}
          </SelectField>
          <Button type="submit" look="primary" busy={invitation.isPending}>
            Invite
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
                  <span className="quiet small">valid until {dateTime(expires_at)}</span>
                  <Button compact busy={revocation.isPending} onClick={() => revocation.mutate(id)}>
                    Revoke
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

export const Route = createFileRoute('/_inside/members')({ component: MembersPage });

function MembersPage() {
  const members = useQuery(membersQuery());
  const session = useStore(sessionStore);
  const me = session.state === 'signed_in' ? session.me : null;
  const [leaving, setLeaving] = useState<Member | null>(null);
  const change = useMutation({
    mutationFn: ({ id, role }: { id: string; role: Role }) =>
      dataOf(api.PATCH('/api/v1/members/{user_id}', { params: { path: { user_id: id } }, body: { role } })),
    onSuccess: () => announce('The role is changed.'),
    onSettled: () => refresh(membersQuery()),
  });
  const isManagedHere = me?.issuer === location.origin;
  return (
    <Page
      title={TEXT.nav.members}
      about="A tenant is your organisation: its people, projects and limits. Owners and admins see all of its projects."
    >
      {!isManagedHere && me && (
        <Note>The identity provider {me.issuer} manages its users. Change them there.</Note>
      )}
      {change.isError && <ErrorNote error={change.error} />}
      <Loaded query={members}>
        {(all) => (
          <div className="card">
            <ListTable columns={['E-mail address', 'Role', 'Member since']}>
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
                          aria-label={`Role of ${member.email}`}
                          value={member.role}
                          onChange={({ target }) =>
                            change.mutate({ id: member.id, role: target.value as Role })
                          }
                        >
                          {roleOptions}
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
                          aria-label={`Remove ${member.email}`}
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
          title={`Remove ${leaving.email}`}
          action="Remove member"
          isDangerous
          run={() =>
            dataOf(api.DELETE('/api/v1/members/{user_id}', { params: { path: { user_id: leaving.id } } }))
          }
          onDone={() => {
            announce('The member is removed.');
            refresh(membersQuery());
          }}
          onClose={() => setLeaving(null)}
        >
          <p>The account is deleted, and its sessions end. What the member made stays.</p>
        </ActionDialog>
      )}
    </Page>
  );
}
