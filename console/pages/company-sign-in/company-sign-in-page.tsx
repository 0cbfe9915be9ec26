import { useMutation, useQuery } from '@tanstack/react-query';
import { createFileRoute } from '@tanstack/react-router';
import { useState } from 'react';
import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { Button } from '../../components/button.tsx';
import { CopyButton, Snippet } from '../../components/copy.tsx';
import { ActionDialog } from '../../components/dialog.tsx';
import { announce, Empty, ErrorNote, Loaded, Note } from '../../components/feedback.tsx';
import { Page } from '../../components/page.tsx';
import { api } from '../../data/gateway.ts';
import { refresh } from '../../data/query-client.ts';
import { type IdentityProvider, identityProvidersQuery, tenantQuery } from '../../data/resources.ts';
import { TEXT } from '../../strings/common.ts';
import { ProviderDialog } from './provider-dialog.tsx';

const paramsOf = ({ id }: IdentityProvider) => ({ path: { provider_id: id } });

const Copied = ({ text, label }: { text: string; label: string }) => (
  <span className="row copied">
    <code className="truncate">{text}</code>
    <CopyButton text={text} label={label} />
  </span>
);

/** The domains of a provider, with the TXT record of each that is not verified yet. */
function Domains({ provider }: { provider: IdentityProvider }) {
  const verification = useMutation({
    mutationFn: (domain: string) =>
      dataOf(
        api.POST('/api/v1/identity-providers/{provider_id}/domains/{domain}/verify', {
          params: { path: { ...paramsOf(provider).path, domain } },
        }),
      ),
    onSuccess: (_, domain) => {
      announce(`The domain ${domain} is verified.`);
      refresh(identityProvidersQuery());
    },
  });
  return (
    <section className="stack" aria-label="Domains">
      <h3>Domains</h3>
      <ul className="stack">
        {provider.domains.map(({ domain, verified_at, txt_record }) => (
          <li key={domain} className="stack">
            <div className="row">
              <code>{domain}</code>
              <span className={verified_at === null ? 'badge warn' : 'badge good'}>
                {verified_at === null ? 'not verified' : 'verified'}
              </span>
              {verified_at === null && (
                <Button
                  compact
                  busy={verification.isPending && verification.variables === domain}
                  onClick={() => verification.mutate(domain)}
                >
                  Verify {domain}
                </Button>
              )}
            </div>
            {verified_at === null && (
              <>
                <p className="small quiet">Publish this TXT record of {domain}, then verify it:</p>
                <Snippet code={txt_record} label={`Copy the TXT record of ${domain}`} />
              </>
            )}
          </li>
        ))}
      </ul>
      {verification.isError && <ErrorNote error={verification.error} />}
    </section>
  );
}

const CHECKS: Record<Schemas['IdentityProviderTest']['checks'][number]['name'], string> = {
  discovery: 'Discovery',
  endpoints: 'Endpoints',
  keys: 'Keys',
  domains: 'Domains',
};

function Findings({ checks }: Schemas['IdentityProviderTest']) {
  return (
    <ul className="stack" aria-label="Findings of the test">
      {checks.map(({ name, ok, message }) => (
        <li key={name}>
          <Note tone={ok ? 'good' : 'bad'}>
            <p>
              <strong>{CHECKS[name]}</strong> {message}
            </p>
          </Note>
        </li>
      ))}
    </ul>
  );
}

function RolesOf({ provider }: { provider: IdentityProvider }) {
  const roles = Object.entries(provider.roles);
  return (
    <>
      {provider.role_claim !== null && (
        <div>
          <dt>Roles by {provider.role_claim}</dt>
          <dd>
            {roles.length === 0
              ? 'none'
              : roles.map(([value, role]) => (
                  <div key={value}>
                    <code>{value}</code> → {role}
                  </div>
                ))}
          </dd>
        </div>
      )}
      <div>
        <dt>Default role</dt>
        <dd>{provider.default_role}</dd>
      </div>
    </>
  );
}

/** A provider with everything that can be done about it. */
function ProviderCard({ provider }: { provider: IdentityProvider }) {
  const [open, setOpen] = useState<'change' | 'delete' | 'scim' | null>(null);
  const [made, setMade] = useState<Schemas['ScimToken'] | null>(null);
  const test = useMutation({
    mutationFn: () =>
      dataOf(api.POST('/api/v1/identity-providers/{provider_id}/test', { params: paramsOf(provider) })),
  });
  const close = () => setOpen(null);
  return (
    <li className="card">
      <header>
        <h2>{provider.name}</h2>
        <div className="row">
          <Button compact busy={test.isPending} onClick={() => test.mutate()}>
            Test
          </Button>
          <Button compact onClick={() => setOpen('change')}>
            Change
          </Button>
          <Button compact look="danger" onClick={() => setOpen('delete')}>
            Delete
          </Button>
        </div>
      </header>
      <div className="body stack">
        {test.isError && <ErrorNote error={test.error} />}
        {test.data && <Findings {...test.data} />}
        <dl className="facts">
          <div className="wide">
            <dt>Redirect address, to register at the provider</dt>
            <dd>
              <Copied text={provider.redirect_uri} label="Copy the redirect address" />
            </dd>
          </div>
          <div>
            <dt>Issuer</dt>
            <dd className="mono small">{provider.issuer}</dd>
          </div>
          <div>
            <dt>Client ID</dt>
            <dd className="mono small">{provider.client_id}</dd>
          </div>
          <RolesOf provider={provider} />
          <div className="wide">
            <dt>SCIM address</dt>
            <dd>
              <Copied text={provider.scim_url} label="Copy the SCIM address" />
            </dd>
          </div>
          <div>
            <dt>SCIM token</dt>
            <dd className="row">
              {provider.has_scim_token ? 'in use' : 'none'}
              <Button compact onClick={() => setOpen('scim')}>
                {provider.has_scim_token ? 'Replace the token' : 'Make a token'}
              </Button>
            </dd>
          </div>
        </dl>
        {made !== null && (
          <Note tone="warn">
            {made.token === null
              ? 'The token was lost on its way, and cannot be shown again. Replace it.'
              : 'Copy the token now. It cannot be shown again.'}
          </Note>
        )}
        {made?.token && <Snippet code={made.token} label="Copy the SCIM token" />}
        <Domains provider={provider} />
      </div>
      {open === 'change' && (
        <ProviderDialog
          provider={provider}
          onClose={close}
          onDone={() => {
            close();
            announce('The provider is changed.');
            refresh(identityProvidersQuery());
          }}
        />
      )}
      {open === 'scim' && (
        <ActionDialog
          title={`SCIM token of ${provider.name}`}
          action="Make a token"
          isDangerous={provider.has_scim_token}
          run={() =>
            dataOf(
              api.POST('/api/v1/identity-providers/{provider_id}/scim-token', { params: paramsOf(provider) }),
            )
          }
          onDone={(response) => {
            setMade(response);
            refresh(identityProvidersQuery());
          }}
          onClose={close}
        >
          <p>With it, the provider creates people here, and ends their access.</p>
          {provider.has_scim_token && <p>The former token is refused from then on.</p>}
        </ActionDialog>
      )}
      {open === 'delete' && (
        <ActionDialog
          title={`Delete ${provider.name}`}
          action="Delete provider"
          isDangerous
          typed={[provider.name]}
          run={() =>
            dataOf(api.DELETE('/api/v1/identity-providers/{provider_id}', { params: paramsOf(provider) }))
          }
          onDone={() => {
            announce('The provider is deleted.');
            refresh(identityProvidersQuery());
          }}
          onClose={close}
        >
          <p>Its people lose their access: their sessions and API keys end within 30 seconds.</p>
        </ActionDialog>
      )}
    </li>
  );
}

/** Whether people have to use the provider, and the recovery code of the owners. */
function Requirement({ tenant }: { tenant: Schemas['TenantSettings'] }) {
  const [open, setOpen] = useState<'change' | 'code' | null>(null);
  const [code, setCode] = useState<string | null>(null);
  const isRequired = tenant.sso_required;
  const done = ({ recovery_code }: Schemas['ChangedTenantSettings']) => {
    setCode(recovery_code);
    refresh(tenantQuery());
  };
  return (
    <section className="card" aria-label="Required sign-in">
      <header>
        <h2>Required sign-in</h2>
        <Button compact look={isRequired ? 'danger' : 'primary'} onClick={() => setOpen('change')}>
          {isRequired ? 'Allow other ways' : 'Require the provider'}
        </Button>
      </header>
      <div className="body stack">
        <p>
          {isRequired
            ? 'People with an address in a verified domain can sign in by the identity provider only.'
            : 'People can also sign in with a password or a mailed code.'}
        </p>
        {isRequired && (
          <div className="row">
            <span>
              {tenant.has_recovery_code
                ? 'An owner can sign in once with the recovery code while the provider is unavailable.'
                : 'The recovery code is used up.'}
            </span>
            <Button compact onClick={() => setOpen('code')}>
              New recovery code
            </Button>
          </div>
        )}
        {code !== null && (
          <>
            <Note tone="warn">
              Store the recovery code of the owners outside of the provider. It is not shown again.
            </Note>
            <Snippet code={code} label="Copy the recovery code" />
          </>
        )}
      </div>
      {open === 'change' && (
        <ActionDialog
          title={isRequired ? 'Allow other ways to sign in' : 'Require the identity provider'}
          action={isRequired ? 'Allow other ways' : 'Require the provider'}
          isDangerous={isRequired}
          run={() => dataOf(api.PATCH('/api/v1/tenant', { body: { sso_required: !isRequired } }))}
          onDone={done}
          onClose={() => setOpen(null)}
        >
          {isRequired ? (
            <p>Passwords and mailed codes of your people are accepted again.</p>
          ) : (
            <>
              <p>Other sessions of people with an address in a verified domain end.</p>
              <p>Sign in by the provider yourself first: the gateway refuses the change until you have.</p>
            </>
          )}
        </ActionDialog>
      )}
      {open === 'code' && (
        <ActionDialog
          title="New recovery code"
          action="New recovery code"
          run={() => dataOf(api.POST('/api/v1/tenant/recovery-code'))}
          onDone={done}
          onClose={() => setOpen(null)}
        >
          <p>The former code is not valid any more. All owners are notified by mail.</p>
        </ActionDialog>
      )}
    </section>
  );
}

export const Route = createFileRoute('/_inside/company')({ component: CompanySignInPage });

function CompanySignInPage() {
  const providers = useQuery(identityProvidersQuery());
  const tenant = useQuery(tenantQuery());
  const [isAdding, setAdding] = useState(false);
  return (
    <Page
      title={TEXT.nav.company}
      about="Your people sign in with the identity provider of your company, and lose access when they leave it."
      actions={
        <Button look="primary" icon="plus" onClick={() => setAdding(true)}>
          Add provider
        </Button>
      }
    >
      <Loaded query={providers}>
        {(all) =>
          all.length === 0 ? (
            <div className="card">
              <Empty icon="people" title="No identity provider">
                <p>Add the one of your company: OpenID Connect or GitHub.</p>
              </Empty>
            </div>
          ) : (
            <ul className="stack">
              {all.map((provider) => (
                <ProviderCard key={provider.id} provider={provider} />
              ))}
            </ul>
          )
        }
      </Loaded>
      <Loaded query={tenant}>{(settings) => <Requirement tenant={settings} />}</Loaded>
      {isAdding && (
        <ProviderDialog
          provider={null}
          onClose={() => setAdding(false)}
          onDone={() => {
            setAdding(false);
            announce('The provider is added. Register its redirect address, and verify its domains.');
            refresh(identityProvidersQuery());
          }}
        />
      )}
    </Page>
  );
}
