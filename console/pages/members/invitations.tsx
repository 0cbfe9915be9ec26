import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../app/format.ts';
import { api, gateway } from '../../app/gateway.ts';
import { everyRecord } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { ErrorNote, Loaded } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { MEMBERS_TEXT } from '../../strings/members.ts';
import { ROLES_TEXT } from '../../strings/roles.ts';
import { SIGN_IN_TEXT } from '../../strings/sign-in.ts';

const ROLES = ['viewer', 'operator', 'admin', 'owner'] as const;
type Role = (typeof ROLES)[number];

const KEY = ['invitations'];

export function Invitations() {
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
            onChange={({ target }) => setRole(target.value as Role)}
          >
            {ROLES.map((each) => (
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
