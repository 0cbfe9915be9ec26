import type { Context } from 'hono';
import { z } from 'zod';
import type { Result } from '../../shared/result.ts';
import { type AppContext, clientOf } from '../pipeline/context.ts';
import { SCIM_ERROR_SCHEMA } from '../pipeline/failures.ts';
import { emptyResponse, jsonBody, operation, operations } from '../pipeline/operation.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { responseHeaders } from '../pipeline/response-headers.ts';
import {
  GROUP_SCHEMA,
  isObject,
  type ResourceSchema,
  readResource,
  USER_SCHEMA,
} from '../scim/attributes.ts';
import { createGroup, deleteGroup, getGroup, listGroups, patchGroup, replaceGroup } from '../scim/groups.ts';
import {
  GroupBody,
  PatchBody,
  project,
  SCHEMA,
  SCIM_PAGE_MAX,
  SCIM_PATH,
  SCIM_TYPE,
  type ScimFailure,
  type ScimResource,
  UserBody,
} from '../scim/resource.ts';
import { RESOURCE_TYPES, SCHEMAS, SERVICE_PROVIDER_CONFIG } from '../scim/service.ts';
import {
  createUser,
  deleteUser,
  getUser,
  listUsers,
  patchUser,
  replaceUser,
  type ScimContext,
} from '../scim/users.ts';
import { readSettings } from '../settings.ts';

const tags = ['SCIM'];

const Resource = z
  .looseObject({ schemas: z.array(z.string()), id: z.string() })
  .meta({ id: 'ScimResource', description: 'A user or a group (RFC 7643).' });
const List = z
  .looseObject({
    schemas: z.array(z.string()),
    totalResults: z.int(),
    Resources: z.array(z.looseObject({})),
  })
  .meta({ id: 'ScimListResponse' });

const Attributes = z.strictObject({
  attributes: z.string().max(1000).optional(),
  excludedAttributes: z.string().max(1000).optional(),
});
const ListParams = Attributes.extend({
  filter: z
    .string()
    .optional()
    .meta({ description: 'RFC 7644 section 3.4.2.2.', example: 'userName eq "ada@example.com"' }),
  startIndex: z.coerce
    .number()
    .int()
    .default(1)
    .transform((index) => Math.max(1, index)),
  count: z.coerce
    .number()
    .int()
    .default(100)
    .transform((count) => Math.min(SCIM_PAGE_MAX, Math.max(0, count))),
  sortBy: z
    .string()
    .max(100)
    .optional()
    .meta({ description: 'Ignored: lists are in the order of creation.' }),
  sortOrder: z.string().max(20).optional(),
});
const IdParams = z.strictObject({ id: z.string().max(64) });

const contextOf = (c: AppContext): ScimContext => ({
  db: databaseOf(c),
  provider: c.var.scimProvider,
  baseUrl: readSettings(c.env).BASE_URL,
  client: clientOf(c),
  now: new Date(),
});

const scimResponse = <S extends z.ZodType>(description: string, schema: S) => ({
  description,
  headers: responseHeaders(),
  content: { [SCIM_TYPE]: { schema } },
});

const taken = {
  409: scimResponse(
    'There is another one with this name, or another request changes this one.',
    SCIM_ERROR_SCHEMA,
  ),
};

/** Sends a resource or the error of SCIM. */
function send(c: Context, outcome: Result<object, ScimFailure>, status: 200 | 201 = 200) {
  const headers = { 'Content-Type': SCIM_TYPE };
  if (!outcome.ok) {
    const { status: code, scimType, detail } = outcome.failure;
    const body = { schemas: [SCHEMA.error], status: String(code), ...(scimType && { scimType }), detail };
    return c.body(JSON.stringify(body), code, headers) as never;
  }
  const location = (outcome.value as Partial<ScimResource>).meta?.location;
  return c.body(JSON.stringify(outcome.value), status, {
    ...headers,
    ...(status === 201 && location && { Location: location }),
  }) as never;
}

const projected = (
  c: AppContext,
  outcome: Result<ScimResource, ScimFailure>,
): Result<ScimResource, ScimFailure> =>
  outcome.ok ? { ok: true, value: project(outcome.value, c.req.query()) } : outcome;

const router = operations();

interface Kind<B extends z.ZodType> {
  noun: 'User' | 'Group';
  body: B;
  list: (context: ScimContext, query: z.output<typeof ListParams>) => Promise<Result<object, ScimFailure>>;
  get: (context: ScimContext, id: string) => Promise<Result<ScimResource, ScimFailure>>;
  create: (context: ScimContext, body: z.output<B>) => Promise<Result<ScimResource, ScimFailure>>;
  replace: (
    context: ScimContext,
    id: string,
    body: z.output<B>,
  ) => Promise<Result<ScimResource, ScimFailure>>;
  patch: (context: ScimContext, id: string, body: PatchBody) => Promise<Result<ScimResource, ScimFailure>>;
  remove: (context: ScimContext, id: string) => Promise<Result<null, ScimFailure>>;
}

function register<B extends z.ZodType>({ noun, body, ...kind }: Kind<B>): void {
  const path = `${SCIM_PATH}/${noun}s`;
  const lower = noun.toLowerCase();

  router.openapi(
    operation({
      access: 'scim',
      operationId: `scimList${noun}s`,
      method: 'get',
      path,
      summary: `List ${lower}s`,
      tags,
      request: { query: ListParams },
      responses: { 200: scimResponse('A page.', List) },
    }),
    async (c) => send(c, await kind.list(contextOf(c), c.req.valid('query'))),
  );
  router.openapi(
    operation({
      access: 'scim',
      operationId: `scimCreate${noun}`,
      method: 'post',
      path,
      summary: `Create a ${lower}`,
      tags,
      request: { body: jsonBody(body as z.ZodType<Record<string, unknown>>) },
      responses: { 201: scimResponse('It is created.', Resource), ...taken },
    }),
    async (c) => send(c, await kind.create(contextOf(c), c.req.valid('json') as z.output<B>), 201),
  );
  router.openapi(
    operation({
      access: 'scim',
      operationId: `scimGet${noun}`,
      method: 'get',
      path: `${path}/{id}`,
      summary: `Get a ${lower}`,
      tags,
      request: { params: IdParams, query: Attributes },
      responses: { 200: scimResponse('The resource.', Resource) },
    }),
    async (c) => send(c, projected(c, await kind.get(contextOf(c), c.req.valid('param').id))),
  );
  router.openapi(
    operation({
      access: 'scim',
      operationId: `scimReplace${noun}`,
      method: 'put',
      path: `${path}/{id}`,
      summary: `Replace a ${lower}`,
      tags,
      request: { params: IdParams, body: jsonBody(body as z.ZodType<Record<string, unknown>>) },
      responses: { 200: scimResponse('The resource.', Resource), ...taken },
    }),
    async (c) =>
      send(c, await kind.replace(contextOf(c), c.req.valid('param').id, c.req.valid('json') as z.output<B>)),
  );
  router.openapi(
    operation({
      access: 'scim',
      operationId: `scimPatch${noun}`,
      method: 'patch',
      path: `${path}/{id}`,
      summary: `Change a ${lower}`,
      tags,
      request: { params: IdParams, query: Attributes, body: jsonBody(PatchBody.meta(PATCH_EXAMPLE)) },
      responses: { 200: scimResponse('The resource.', Resource), ...taken },
    }),
    async (c) =>
      send(c, projected(c, await kind.patch(contextOf(c), c.req.valid('param').id, c.req.valid('json')))),
  );
  router.openapi(
    operation({
      access: 'scim',
      operationId: `scimDelete${noun}`,
      method: 'delete',
      path: `${path}/{id}`,
      summary: `Delete a ${lower}`,
      tags,
      request: { params: IdParams },
      responses: { 204: emptyResponse('It is deleted.'), 409: taken[409] },
    }),
    async (c) => {
      const outcome = await kind.remove(contextOf(c), c.req.valid('param').id);
      return outcome.ok ? c.body(null, 204) : send(c, outcome);
    },
  );
}

/** The names of attributes have no case, which the schema of the body alone cannot say. */
const bodyOf = <B extends z.ZodType>(schema: ResourceSchema, body: B) =>
  z.preprocess((value, context) => {
    if (!isObject(value)) return value;
    const read = readResource(schema, value);
    if (read.ok) return read.value;
    context.addIssue({ code: 'custom', message: read.failure.detail });
    return z.NEVER;
  }, body);

const PATCH_EXAMPLE = {
  example: { schemas: [SCHEMA.patch], Operations: [{ op: 'replace', path: 'active', value: false }] },
};

register({
  noun: 'User',
  body: bodyOf(USER_SCHEMA, UserBody).meta({
    example: { schemas: [SCHEMA.user], userName: 'ada@example.com', active: true },
  }),
  list: listUsers,
  get: getUser,
  create: createUser,
  replace: replaceUser,
  patch: patchUser,
  remove: deleteUser,
});
register({
  noun: 'Group',
  body: bodyOf(GROUP_SCHEMA, GroupBody).meta({
    example: { schemas: [SCHEMA.group], displayName: 'branchgate-admins', members: [] },
  }),
  list: listGroups,
  get: getGroup,
  create: createGroup,
  replace: replaceGroup,
  patch: patchGroup,
  remove: deleteGroup,
});

const DOCUMENTS = {
  ServiceProviderConfig: SERVICE_PROVIDER_CONFIG,
  Schemas: SCHEMAS,
  ResourceTypes: RESOURCE_TYPES,
} as const;

for (const [name, document] of Object.entries(DOCUMENTS)) {
  router.openapi(
    operation({
      access: 'scim',
      operationId: `scimGet${name}`,
      method: 'get',
      path: `${SCIM_PATH}/${name}`,
      summary: `Get the ${name} of SCIM`,
      tags,
      responses: { 200: scimResponse('The document (RFC 7644 section 4).', z.looseObject({})) },
    }),
    (c) => send(c, { ok: true, value: document }),
  );
}

export const scimRoutes = router;
