import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf, ResponseError } from '../../../client/response-error.ts';
import { plural } from '../../../shared/format.ts';
import { requireSession, useEndOfSession } from '../../app/require-session.ts';
import { Button } from '../../components/button.tsx';
import { ErrorNote, Loading, Note } from '../../components/feedback.tsx';
import { Check, Choice, Field, SelectField } from '../../components/field.tsx';
import { Logo } from '../../components/icon.tsx';
import { api } from '../../data/gateway.ts';
import { type Me, projectsQuery } from '../../data/resources.ts';
import { texts } from '../../data/search.ts';
import { sessionStore, signOut } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { TEXT } from '../../strings/common.ts';
import '../sign-in/sign-in.css';

const ROLES = [
  ['viewer', 'Viewer'],
  ['operator', 'Operator'],
  ['admin', 'Admin'],
  ['owner', 'Owner'],
] as const;
type Role = (typeof ROLES)[number][0];

const SCOPES = [
  ['read', 'Read'],
  ['write', 'Read and write'],
] as const;
type Scope = (typeof SCOPES)[number][0];

const EVERY_PROJECT = 'every';
const AGENTS = 'agent-*';

/** The roles that a person can give: at most their own. */
const rolesUpTo = (role: string) => ROLES.slice(0, ROLES.findIndex(([name]) => name === role) + 1);

type AuthorizationRequest = Schemas['AuthorizationRequest'];

/** What the authorization endpoint has put into the address. Anybody can make a link to this page, so the gateway checks it. */
function readRequest(text: string | undefined): AuthorizationRequest {
  try {
    const bytes = atob((text ?? '').replaceAll('-', '+').replaceAll('_', '/'));
    const json = new TextDecoder().decode(Uint8Array.from(bytes, (byte) => byte.charCodeAt(0)));
    return JSON.parse(json) as AuthorizationRequest;
  } catch {
    return {};
  }
}

/** Where the code goes, which is all that a person can rely on: a client chooses its name itself. */
const Destination = ({ asked }: { asked: Schemas['PreviewedGrant'] }) => (
  <Note tone="warn">
    <p>
      If you allow it, {asked.is_loopback ? 'a program on this computer' : 'this website'} is signed in:{' '}
      <strong className="mono">{asked.redirect_host}</strong>
    </p>
    <p className="small">
      {TEXT.name} does not know who made it: <q>{asked.client_name}</q> is what it calls itself. Go on only if
      you have just started a sign-in there.
    </p>
  </Note>
);

interface ConsentFormProps {
  request: AuthorizationRequest;
  asked: Schemas['PreviewedGrant'];
  me: Me;
}

/** The least rights with which an agent can work are selected: branches of its own in one project. */
function ConsentForm({ request, asked, me }: ConsentFormProps) {
  const projects = useQuery(projectsQuery());
  const roles = rolesUpTo(me.role);
  const [role, setRole] = useState<Role>(roles.some(([name]) => name === 'operator') ? 'operator' : 'viewer');
  const [scope, setScope] = useState<Scope>(asked.scopes.includes('write') ? 'write' : 'read');
  const [chosenId, setChosenId] = useState<string | null>(null);
  const [pattern, setPattern] = useState(AGENTS);
  const [hasFullData, setFullData] = useState(false);
  const all = projects.data ?? [];
  const only = all.length === 1 ? all[0]?.id : undefined;
  const projectId = asked.project_id ?? chosenId ?? only ?? '';
  const shown = asked.project_id === null ? all : all.filter(({ id }) => id === asked.project_id);
  const consent = useMutation({
    mutationFn: () =>
      dataOf(
        api.POST('/api/v1/oauth-grants', {
          body: {
            request,
            consent: {
              role,
              scopes: scope === 'write' ? ['read', 'write'] : ['read'],
              permissions: hasFullData ? ['data.full'] : [],
              project_id: projectId === EVERY_PROJECT ? null : projectId,
              branch_pattern: pattern || null,
            },
          },
        }),
      ),
    onSuccess: ({ redirect_uri }) => location.assign(redirect_uri),
  });
  if (consent.isSuccess)
    return <p role="status">{asked.client_name} is signed in. Return to it; you can close this page.</p>;
  return (
    <form
      className="stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (!consent.isPending) consent.mutate();
      }}
    >
      <Destination asked={asked} />
      <p>
        It will act in your name, with what you give it here. Everything that it does is in the audit log.
      </p>
      <SelectField
        label={TEXT.nav.project}
        value={projectId}
        onChange={(event) => setChosenId(event.target.value)}
        required
      >
        <option value="" disabled>
          Choose a project
        </option>
        {shown.map(({ id, name }) => (
          <option key={id} value={id}>
            {name}
          </option>
        ))}
        {asked.project_id === null && <option value={EVERY_PROJECT}>Every project</option>}
      </SelectField>
      <Field
        label="Only branches that match"
        hint={
          pattern === ''
            ? 'Every branch, main included.'
            : 'It can clone main, and not read it. Empty: every branch.'
        }
        className="mono"
        placeholder={AGENTS}
        value={pattern}
        onChange={(event) => setPattern(event.target.value)}
      />
      {asked.scopes.includes('write') && (
        <Choice legend="May" name="scope" options={SCOPES} value={scope} onChange={setScope} />
      )}
      {roles.length > 1 && (
        <Choice legend="Role" name="role" options={roles} value={role} onChange={setRole} />
      )}
      {asked.may_give_full_data && (
        <Check
          label="It may use unmasked data where members get masked data only"
          checked={hasFullData}
          onChange={(event) => setFullData(event.target.checked)}
        />
      )}
      {projects.isError && <ErrorNote error={projects.error} />}
      {consent.isError && <ErrorNote error={consent.error} />}
      <div className="row">
        <Button type="submit" look="primary" busy={consent.isPending}>
          Allow
        </Button>
        <Button onClick={() => location.assign(asked.refused_uri)}>Refuse</Button>
      </div>
      <p className="small quiet">
        It is signed out after {plural(asked.days, 'day')}, when you sign out of this session, or when you
        sign it out in your account.
      </p>
    </form>
  );
}

/** What is wrong with the request, in the words of OAuth, which are for the maker of the client. */
function Problem({ error }: { error: unknown }) {
  const description = error instanceof ResponseError ? error.fields.error_description : undefined;
  return (
    <>
      <ErrorNote error={error} />
      {typeof description === 'string' && <p className="small">{description}</p>}
      <p className="small quiet">Nothing was allowed. Start the sign-in again where you began it.</p>
    </>
  );
}

/** Only reads who asks. Nothing happens before a person presses a button, however often the client has asked. */
const previewOf = (request: AuthorizationRequest) => ({
  queryKey: ['oauth-preview', request],
  queryFn: () => dataOf(api.POST('/api/v1/oauth-grants/preview', { body: { request } })),
  staleTime: Number.POSITIVE_INFINITY,
  retry: false,
});

export const Route = createFileRoute('/authorize')({
  beforeLoad: ({ location }) => requireSession(location),
  component: ConsentPage,
});

function ConsentPage() {
  useEndOfSession({ returnsAlways: true });
  const search = texts('request')(Route.useSearch());
  const session = useStore(sessionStore);
  const [request] = useState(() => readRequest(search.request));
  const preview = useQuery(previewOf(request));
  const title = preview.data ? `Sign in ${preview.data.client_name}?` : 'Sign in an agent';
  useEffect(() => {
    document.title = `${title} · ${TEXT.name}`;
  }, [title]);
  if (session.state !== 'signed_in') return null;
  const { me } = session;
  return (
    <main className="sign-in">
      <div className="sign-in-card">
        <div className="brand">
          <Logo />
          <span>{TEXT.name}</span>
        </div>
        <h1>{title}</h1>
        <p className="small">
          You are <strong>{me.email}</strong>.{' '}
          <Button compact look="bare" onClick={() => signOut()}>
            Use another account
          </Button>
        </p>
        {preview.isPending && <Loading />}
        {preview.isError && <Problem error={preview.error} />}
        {preview.data && <ConsentForm request={request} asked={preview.data} me={me} />}
      </div>
    </main>
  );
}
