import { SCHEMA, SCIM_PAGE_MAX, SCIM_PATH } from './resource.ts';

/** What this service supports (RFC 7643 section 5). */
export const SERVICE_PROVIDER_CONFIG = {
  schemas: [SCHEMA.config],
  patch: { supported: true },
  bulk: { supported: false, maxOperations: 0, maxPayloadSize: 0 },
  filter: { supported: true, maxResults: SCIM_PAGE_MAX },
  changePassword: { supported: false },
  sort: { supported: false },
  etag: { supported: false },
  authenticationSchemes: [
    {
      type: 'oauthbearertoken',
      name: 'Bearer token',
      description: 'The SCIM token of the identity provider.',
      specUri: 'https://www.rfc-editor.org/rfc/rfc6750',
      primary: true,
    },
  ],
  meta: { resourceType: 'ServiceProviderConfig', location: `${SCIM_PATH}/ServiceProviderConfig` },
};

const attribute = (name: string, type: string, more: Record<string, unknown> = {}) => ({
  name,
  type,
  multiValued: false,
  required: false,
  caseExact: false,
  mutability: 'readWrite',
  returned: 'default',
  uniqueness: 'none',
  ...more,
});

const values = (...subAttributes: ReturnType<typeof attribute>[]) => ({ multiValued: true, subAttributes });

const schema = (id: string, name: string, attributes: ReturnType<typeof attribute>[]) => ({
  schemas: [SCHEMA.schema],
  id,
  name,
  attributes,
  meta: { resourceType: 'Schema', location: `${SCIM_PATH}/Schemas/${id}` },
});

const listed = (Resources: readonly object[]) => ({
  schemas: [SCHEMA.list],
  totalResults: Resources.length,
  startIndex: 1,
  itemsPerPage: Resources.length,
  Resources,
});

/** The attributes that the gateway uses (RFC 7643 section 7). */
export const SCHEMAS = listed([
  schema(SCHEMA.user, 'User', [
    attribute('userName', 'string', { required: true, uniqueness: 'server' }),
    attribute('externalId', 'string', { caseExact: true }),
    attribute('displayName', 'string'),
    attribute('name', 'complex', {
      subAttributes: [attribute('givenName', 'string'), attribute('familyName', 'string')],
    }),
    attribute('emails', 'complex', values(attribute('value', 'string'), attribute('primary', 'boolean'))),
    attribute('active', 'boolean'),
    attribute('groups', 'complex', { ...values(attribute('display', 'string')), mutability: 'readOnly' }),
  ]),
  schema(SCHEMA.group, 'Group', [
    attribute('displayName', 'string', { required: true, uniqueness: 'server' }),
    attribute('externalId', 'string', { caseExact: true }),
    attribute('members', 'complex', values(attribute('value', 'string'))),
  ]),
]);

const resourceType = (name: 'User' | 'Group', id: string) => ({
  schemas: [SCHEMA.resourceType],
  id: name,
  name,
  endpoint: `/${name}s`,
  schema: id,
  meta: { resourceType: 'ResourceType', location: `${SCIM_PATH}/ResourceTypes/${name}` },
});

export const RESOURCE_TYPES = listed([
  resourceType('User', SCHEMA.user),
  resourceType('Group', SCHEMA.group),
]);
