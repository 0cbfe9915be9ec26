import type { Schemas } from '../../../client/client.ts';

/** What to do at a known provider. */
export interface Guide {
  name: string;
  kind: Schemas['IdentityProvider']['kind'];
  issuer: string;
  roleClaim: string;
  steps: readonly string[];
}

/** The recipes of `docs/company-sign-in.md`. */
export const GUIDES = {
  entra: {
    name: 'Microsoft Entra',
    kind: 'oidc',
    issuer: 'https://login.microsoftonline.com/DIRECTORY-ID/v2.0',
    roleClaim: 'groups',
    steps: [
      'Create an app registration for this directory only, with the platform Web.',
      'Under Token configuration, add the optional claim email and a groups claim.',
      'Create a client secret. The values of groups are the object IDs of groups.',
    ],
  },
  google: {
    name: 'Google Workspace',
    kind: 'oidc',
    issuer: 'https://accounts.google.com',
    roleClaim: '',
    steps: [
      'Set the user type of the OAuth consent screen to Internal.',
      'Create an OAuth client of the type Web application.',
      'Google sends no groups, so everyone has the default role.',
    ],
  },
  okta: {
    name: 'Okta',
    kind: 'oidc',
    issuer: 'https://YOUR-DOMAIN.okta.com',
    roleClaim: 'groups',
    steps: [
      'Create an app integration: OIDC, Web Application.',
      'Under Sign On, add a groups claim to the ID token.',
      'Assign the people or groups that may sign in.',
    ],
  },
  keycloak: {
    name: 'Keycloak',
    kind: 'oidc',
    issuer: 'https://HOST/realms/REALM',
    roleClaim: 'groups',
    steps: [
      'Create an OpenID Connect client with client authentication.',
      'Add a group membership mapper with the claim groups, without the full path.',
      'Copy the secret from the tab Credentials.',
    ],
  },
  authentik: {
    name: 'Authentik',
    kind: 'oidc',
    issuer: 'https://HOST/application/o/SLUG/',
    roleClaim: 'groups',
    steps: [
      'Create an OAuth2/OpenID provider with a signing key, and an application for it.',
      'Add a scope mapping that returns email_verified: true for addresses that you have checked.',
    ],
  },
  github: {
    name: 'GitHub',
    kind: 'github',
    issuer: '',
    roleClaim: 'teams',
    steps: [
      'Create an OAuth app in the settings of your organization, and approve it there.',
      'The values of teams have the form organization/team.',
    ],
  },
  other: {
    name: 'Another OpenID Connect provider',
    kind: 'oidc',
    issuer: '',
    roleClaim: 'groups',
    steps: ['Create a confidential web client for the authorization code flow.'],
  },
} as const satisfies Record<string, Guide>;

export type GuideName = keyof typeof GUIDES;
export const GUIDE_NAMES = Object.keys(GUIDES) as GuideName[];
