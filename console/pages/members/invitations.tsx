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
import { TEXT } from '../../strings.ts';

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
      announce(TEXT.members.invited(email));
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
        <h2 id="invitations">{TEXT.members.invitations}</h2>
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
            label={TEXT.signIn.email}
            type="email"
            value={email}
            onChange={(event) => setEmail(event.target.value)}
            required
          />
          <SelectField
            label={TEXT.roles.role}
            value={role}
            onChange={({ target }) => setRole(target.value as Role)}
          >
            {ROLES.map((each) => (
              <option key={each} value={each}>
                {TEXT.roles[each]}
              </option>
            ))}
          </SelectField>
          <Button type="submit" look="primary" busy={invitation.isPending}>
            {TEXT.members.invite}
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
                  <span className="quiet small">{TEXT.members.until(dateTime(expires_at))}</span>
                  <Button compact busy={revocation.isPending} onClick={() => revocation.mutate(id)}>
                    {TEXT.members.revoke}
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
