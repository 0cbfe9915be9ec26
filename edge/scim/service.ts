import { type Attribute, GROUP_SCHEMA, type ResourceSchema, USER_SCHEMA } from './attributes.ts';
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

const listed = (Resources: readonly object[]) => ({
  schemas: [SCHEMA.list],
  totalResults: Resources.length,
  startIndex: 1,
  itemsPerPage: Resources.length,
  Resources,
});

const schema = (id: string, name: string, attributes: readonly Attribute[] | undefined) => ({
  schemas: [SCHEMA.schema],
  id,
  name,
  attributes,
  meta: { resourceType: 'Schema', location: `${SCIM_PATH}/Schemas/${id}` },
});

/** An extension is a schema of its own (RFC 7643 section 7). */
const isOwn = ({ name }: Attribute) => !name.startsWith('urn:');

/** The attributes of users and groups (RFC 7643 section 7). */
export const SCHEMAS = listed([
  schema(SCHEMA.user, 'User', USER_SCHEMA.attributes.filter(isOwn)),
  schema(
    SCHEMA.enterprise,
    'EnterpriseUser',
    USER_SCHEMA.attributes.find(({ name }) => name === SCHEMA.enterprise)?.subAttributes,
  ),
  schema(SCHEMA.group, 'Group', GROUP_SCHEMA.attributes.filter(isOwn)),
]);

const resourceType = ({ name, id, extensions }: ResourceSchema) => ({
  schemas: [SCHEMA.resourceType],
  id: name,
  name,
  endpoint: `/${name}s`,
  schema: id,
  ...(extensions.length > 0 && {
    schemaExtensions: extensions.map((extension) => ({ schema: extension, required: false })),
  }),
  meta: { resourceType: 'ResourceType', location: `${SCIM_PATH}/ResourceTypes/${name}` },
});

export const RESOURCE_TYPES = listed([USER_SCHEMA, GROUP_SCHEMA].map(resourceType));
