import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { Button } from '../../components/button.tsx';
import { Dialog } from '../../components/dialog.tsx';
import { ErrorNote, Note } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { api } from '../../data/gateway.ts';
import type { IdentityProvider } from '../../data/resources.ts';
import { GUIDE_NAMES, GUIDES, type Guide, type GuideName } from './guides.ts';

type Role = IdentityProvider['default_role'];
type Mapping = readonly (readonly [value: string, role: Role])[];

const ROLES: readonly Role[] = ['viewer', 'operator', 'admin', 'owner'];

const RoleOptions = () =>
  ROLES.map((role) => (
    <option key={role} value={role}>
      {role}
    </option>
  ));

/** Which value of the claim gives which role, in the order in which they are tried. */
function RoleMapping({ mapping, onChange }: { mapping: Mapping; onChange: (mapping: Mapping) => void }) {
  const change = (index: number, entry: Mapping[number]) => onChange(mapping.with(index, entry));
  return (
    <fieldset className="field">
      <legend>Roles by the value of the claim</legend>
      {mapping.map(([value, role], index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: an entry is known by its place, because its value is typed
        <div className="row pair" key={index}>
          <input
            className="input mono"
            aria-label={`Value ${index + 1}`}
            value={value}
            onChange={({ target }) => change(index, [target.value, role])}
            required
          />
          <select
            className="select"
            aria-label={`Role ${index + 1}`}
            value={role}
            onChange={({ target }) => change(index, [value, target.value as Role])}
          >
            <RoleOptions />
          </select>
          <Button
            compact
            look="bare"
            icon="trash"
            aria-label={`Remove value ${index + 1}`}
            onClick={() => onChange(mapping.toSpliced(index, 1))}
          />
        </div>
      ))}
      <div>
        <Button compact icon="plus" onClick={() => onChange([...mapping, ['', 'viewer']])}>
          Add a value
        </Button>
      </div>
      <span className="hint">The first value that a person has decides.</span>
    </fieldset>
  );
}

interface Props {
  /** The provider to change; null: a new one. */
  provider: IdentityProvider | null;
  onClose: () => void;
  onDone: (provider: IdentityProvider) => void;
}

/** Adds a provider with the guide of a known one, or changes one. */
export function ProviderDialog({ provider, onClose, onDone }: Props) {
  const [guideName, setGuideName] = useState<GuideName>('entra');
  const guide: Guide = GUIDES[guideName];
  const [name, setName] = useState(provider?.name ?? '');
  const [issuer, setIssuer] = useState('');
  const [clientId, setClientId] = useState(provider?.client_id ?? '');
  const [secret, setSecret] = useState('');
  const [domains, setDomains] = useState(provider?.domains.map(({ domain }) => domain).join(' ') ?? '');
  const [defaultRole, setDefaultRole] = useState<Role>(provider?.default_role ?? 'viewer');
  const [claim, setClaim] = useState<string>(provider ? (provider.role_claim ?? '') : GUIDES.entra.roleClaim);
  const [mapping, setMapping] = useState<Mapping>(Object.entries(provider?.roles ?? {}));
  const isGitHub = (provider?.kind ?? guide.kind) === 'github';
  const choose = (chosen: GuideName) => {
    setGuideName(chosen);
    setClaim(GUIDES[chosen].roleClaim);
  };
  const saving = useMutation({
    mutationFn: () => {
      const fields = {
        name,
        client_id: clientId,
        domains: domains.split(/[\s,]+/).filter(Boolean),
        default_role: defaultRole,
        role_claim: claim || null,
        roles: Object.fromEntries(mapping),
      };
      if (provider === null) {
        const ofKind = isGitHub ? { kind: 'github' as const } : { kind: 'oidc' as const, issuer };
        return dataOf(
          api.POST('/api/v1/identity-providers', { body: { ...fields, ...ofKind, client_secret: secret } }),
        );
      }
      return dataOf(
        api.PATCH('/api/v1/identity-providers/{provider_id}', {
          params: { path: { provider_id: provider.id } },
          body: { ...fields, ...(secret && { client_secret: secret }) },
        }),
      );
    },
    onSuccess: onDone,
  });
  const action = provider === null ? 'Add provider' : 'Save changes';
  return (
    <Dialog
      title={provider === null ? 'Add an identity provider' : `Change ${provider.name}`}
      large
      onClose={onClose}
      onSubmit={() => !saving.isPending && saving.mutate()}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" look="primary" busy={saving.isPending}>
            {action}
          </Button>
        </>
      }
    >
      {provider === null && (
        <>
          <SelectField
            label="Provider"
            value={guideName}
            onChange={({ target }) => choose(target.value as GuideName)}
            data-first-focus
          >
            {GUIDE_NAMES.map((known) => (
              <option key={known} value={known}>
                {GUIDES[known].name}
              </option>
            ))}
          </SelectField>
          <Note>
            <ol>
              {guide.steps.map((step) => (
                <li key={step}>{step}</li>
              ))}
              <li>Register the redirect address, which the next page shows.</li>
            </ol>
          </Note>
        </>
      )}
      <Field
        label="Name"
        hint="Shown on the sign-in page, for instance the name of your company."
        value={name}
        onChange={({ target }) => setName(target.value)}
        maxLength={100}
        required
      />
      {provider === null && !isGitHub && (
        <Field
          label="Issuer"
          hint="Exactly the issuer of its discovery document. It cannot be changed later."
          className="mono"
          placeholder={guide.issuer}
          value={issuer}
          onChange={({ target }) => setIssuer(target.value)}
          required
        />
      )}
      <Field
        label="Client ID"
        className="mono"
        value={clientId}
        onChange={({ target }) => setClientId(target.value)}
        required
      />
      <Field
        label="Client secret"
        hint={provider === null ? 'It is sealed and never shown again.' : 'Empty: the secret stays as it is.'}
        type="password"
        autoComplete="off"
        value={secret}
        onChange={({ target }) => setSecret(target.value)}
        required={provider === null}
      />
      <Field
        label="E-mail domains"
        hint="With spaces between them. A domain counts once it is verified."
        className="mono"
        placeholder="example.com"
        value={domains}
        onChange={({ target }) => setDomains(target.value)}
        required
      />
      <SelectField
        label="Default role"
        value={defaultRole}
        onChange={({ target }) => setDefaultRole(target.value as Role)}
      >
        <RoleOptions />
      </SelectField>
      <Field
        label="Claim with the groups or roles (optional)"
        hint="Dots lead into objects, as in realm_access.roles."
        className="mono"
        value={claim}
        onChange={({ target }) => setClaim(target.value)}
      />
      {claim !== '' && <RoleMapping mapping={mapping} onChange={setMapping} />}
      {saving.isError && <ErrorNote error={saving.error} />}
    </Dialog>
  );
}
