import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { createFileRoute, Link } from '@tanstack/react-router';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { dateTime } from '../../../shared/format.ts';
import { Button } from '../../components/button.tsx';
import { announce, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Choice, Field } from '../../components/field.tsx';
import { ListTable } from '../../components/list-table.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { type Me, sessionsQuery } from '../../data/resources.ts';
import { sessionStore, signOut } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { chooseTheme, THEMES, themeStore } from '../../data/theme.ts';
import { TEXT } from '../../strings/common.ts';
import { SignedInAgents } from '../machine-access/signed-in-agents.tsx';

const BROWSERS = [
  ['Edge', /Edg\//],
  ['Opera', /OPR\//],
  ['Firefox', /Firefox\//],
  ['Chrome', /Chrome\//],
  ['Safari', /Safari\//],
] as const;

const SYSTEMS = [
  ['iPhone or iPad', /iPhone|iPad/],
  ['Android', /Android/],
  ['Windows', /Windows/],
  ['macOS', /Mac OS X/],
  ['Linux', /Linux/],
] as const;

const firstOf = (names: typeof BROWSERS | typeof SYSTEMS, userAgent: string) =>
  names.find(([, pattern]) => pattern.test(userAgent))?.[0];

/** What a person calls the program of a session, for instance `Firefox, Linux`. */
function browserName(userAgent: string | null): string {
  if (userAgent === null) return '–';
  return [firstOf(BROWSERS, userAgent) ?? userAgent, firstOf(SYSTEMS, userAgent)].filter(Boolean).join(', ');
}

function Sessions() {
  const client = useQueryClient();
  const sessions = useQuery(sessionsQuery());
  const end = useMutation({
    mutationFn: (id: string) =>
      dataOf(api.DELETE('/api/v1/auth/sessions/{session_id}', { params: { path: { session_id: id } } })),
    onSuccess: () => {
      announce('The session has ended.');
      client.invalidateQueries({ queryKey: sessionsQuery().queryKey });
    },
  });
  const endAll = useMutation({
    mutationFn: () => dataOf(api.DELETE('/api/v1/auth/sessions')),
    onSuccess: signOut,
  });
  return (
    <section className="card" aria-labelledby="sessions">
      <header>
        <h2 id="sessions">Sessions</h2>
        <Button compact look="danger" busy={endAll.isPending} onClick={() => endAll.mutate()}>
          Sign out everywhere
        </Button>
      </header>
      {end.isError && <ErrorNote error={end.error} />}
      {endAll.isError && <ErrorNote error={endAll.error} />}
      <Loaded query={sessions}>
        {(all) => (
          <ListTable columns={['Client', 'Address', 'Last used']}>
            {all.map((session) => (
              <tr key={session.id}>
                <td className="client" title={session.user_agent ?? undefined}>
                  {browserName(session.user_agent)}
                </td>
                <td className="mono">{session.ip ?? '–'}</td>
                <td className="quiet">{dateTime(session.last_used_at)}</td>
                <td className="actions">
                  {session.is_current ? (
                    <span className="badge good">This one</span>
                  ) : (
                    <Button compact busy={end.isPending} onClick={() => end.mutate(session.id)}>
                      Sign out
                    </Button>
                  )}
                </td>
              </tr>
            ))}
          </ListTable>
        )}
      </Loaded>
    </section>
  );
}

function PasswordForm({ email }: { email: string }) {
  const change = useMutation({
    mutationFn: (form: HTMLFormElement) => {
      const values = new FormData(form);
      const body = {
        current_password: String(values.get('current')),
        new_password: String(values.get('next')),
      };
      return dataOf(api.POST('/api/v1/auth/password', { body })).then(() => form.reset());
    },
    onSuccess: () => announce('The password is changed. Your other sessions have ended.'),
  });
  return (
    <form
      className="card padded stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (!change.isPending) change.mutate(event.currentTarget);
      }}
    >
      <h2>Password</h2>
      {/* A password manager stores the password under this name. */}
      <input hidden readOnly autoComplete="username" value={email} />
      <Field
        label="Current password"
        name="current"
        type="password"
        autoComplete="current-password"
        required
      />
      <Field
        label="New password"
        hint="At least 8 characters."
        name="next"
        type="password"
        autoComplete="new-password"
        minLength={8}
        required
      />
      {change.isError && <ErrorNote error={change.error} />}
      <div>
        <Button type="submit" busy={change.isPending}>
          Change password
        </Button>
      </div>
    </form>
  );
}

const Identity = ({ me }: { me: Me }) => (
  <dl className="card padded facts">
    <div>
      <dt>E-mail address</dt>
      <dd>{me.email ?? '–'}</dd>
    </div>
    <div>
      <dt>Tenant</dt>
      <dd className="mono">{me.tenant_id ?? '–'}</dd>
    </div>
    <div>
      <dt>Role</dt>
      <dd>{me.role}</dd>
    </div>
  </dl>
);

export const Route = createFileRoute('/_inside/account')({ component: AccountPage });

function AccountPage() {
  const session = useStore(sessionStore);
  const theme = useStore(themeStore);
  const [me] = useState(session.state === 'signed_in' ? session.me : null);
  if (!me) return null;
  const isOwnAccount = me.issuer === location.origin;
  return (
    <Page title={TEXT.nav.account} width="narrow">
      <Identity me={me} />
      <div className="card padded">
        <Choice legend="Appearance" name="theme" options={THEMES} value={theme} onChange={chooseTheme} />
      </div>
      <SignedInAgents userId={me.id} />
      {isOwnAccount ? (
        <>
          <Sessions />
          <PasswordForm email={me.email ?? ''} />
          <section className="card padded row" aria-labelledby="factor">
            <div className="grow">
              <h2 id="factor">Second factor</h2>
              <p className="quiet">A second factor keeps others out even if they know your password.</p>
            </div>
            <Link to="/account/second-factor" className="button">
              Set up, or replace recovery codes
            </Link>
          </section>
        </>
      ) : (
        <Note>The identity provider {me.issuer} manages your password and your sessions.</Note>
      )}
    </Page>
  );
}
